"""The key-value store with a cluster's metadata: opened, kept durable, found missing."""
