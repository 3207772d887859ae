"""Real faults on real processes and a real mount, under a load that checks every byte it reads."""
