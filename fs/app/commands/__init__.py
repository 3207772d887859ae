"""The commands of `ember`, but for those of `ember admin` and `ember cluster`, and their list."""
