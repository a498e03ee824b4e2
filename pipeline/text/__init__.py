"""Plain text of any language: Unicode normalization, sentence splitting, language and script facts."""
