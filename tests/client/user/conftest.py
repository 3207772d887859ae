"""Which tests of this folder are looked at."""


def pytest_ignore_collect(collection_path, config):
    """Importing torch takes seconds: where no slow test runs, tests that need it are not even read."""
    needs_torch = collection_path.name.startswith("test_torch")
    return True if needs_torch and "not slow" in config.option.markexpr else None
