"""Composition roots: build the objects of a process, wire the ports, run."""
