"""Makes a model from text to scores with one command, for english_model.sh and multilingual_model.sh."""
