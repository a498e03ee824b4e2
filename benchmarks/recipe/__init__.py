"""A model from text to scores, with one command: what english_model.sh and multilingual_model.sh run."""
