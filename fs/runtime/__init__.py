"""What every process needs and simulation replaces:
clock, randomness, network, blocking calls, logs.
"""
