"""WordPiece: from text to ids (`tokenization`), and from word counts to a vocabulary (`training`)."""
