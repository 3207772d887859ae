"""What every process does around its own work: configuration, settings, log, metrics, signals."""
