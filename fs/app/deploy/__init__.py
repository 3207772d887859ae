"""`ember cluster`: installs, grows and upgrades a cluster of many machines
from one inventory (specs/deploying.md).
"""
