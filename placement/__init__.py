"""Chain-table mathematics: which targets form which chains."""
