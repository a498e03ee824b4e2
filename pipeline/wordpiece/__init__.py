"""WordPiece: converts text to ids (`tokenization`), and word counts to a vocabulary (`training`)."""
