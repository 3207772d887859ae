"""How processes of this machine are started, watched, asked and ended."""
