"""`ember admin`: one file per group of commands; commands/admin_commands.py puts them together."""
