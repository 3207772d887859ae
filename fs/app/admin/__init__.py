"""`ember admin`: one file per group of commands; `commands.py` puts them together."""
