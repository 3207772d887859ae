"""Composition roots: build the objects of a process, wire the ports, run.

Folders hold what they share, and the commands.
"""
