"""One file per metadata operation: an async function over one transaction."""
