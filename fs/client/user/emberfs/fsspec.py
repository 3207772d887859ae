"""EmberFS for fsspec: `ember://` in pandas, pyarrow, DuckDB, zarr,
dask and everything else that takes an fsspec URL.

    fs = fsspec.filesystem("ember", cluster="/path/of/ember-up")
    pandas.read_parquet("ember:///data/a.parquet", storage_options={"cluster": "/path/of/ember-up"})
    fsspec.open("ember://CLUSTER_ID@HOST:PORT,HOST:PORT/data/a.csv")

Needs the extra `emberfs[fsspec]`.  Uses the native client: no mount and no daemon.

Invariants:
    - Every error is the OSError that a mount would show (FileNotFoundError, PermissionError ...);
      none is taken for another: `exists` is False only for what is certainly not there.
    - Many files or ranges (`cat`, `cat_ranges`, `pipe`, `find`) are asked for side
      by side, and read in one batch.
    - Listings are kept only with `use_listings_cache=True`, until `invalidate_cache`,
      their time, or a change made here.
    - Instances are safe to use from threads, to pickle, and to use in the child of a fork.

A symbolic link has the type and size of what it leads to, and `islink`; `find`, `walk` and
recursive operations name it and do not follow it.
"""

from .fsspec_parts.content import Content


class EmberFileSystem(Content):
    """See module head; the methods do what `fsspec.AbstractFileSystem` says."""
