"""From dump bytes to sentences: speed, and how clean the text is."""
