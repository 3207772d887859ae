"""Mutation testing of the modules that hold the protocol and the engine (row X2)."""
