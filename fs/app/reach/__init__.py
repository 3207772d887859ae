"""Which cluster a command means, and how the command talks to it."""
