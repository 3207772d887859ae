"""What programs use EmberFS with: batched zero-copy reads and writes, data loaders, checkpoints.

What each thing is imported from:

    emberfs.ring                RingClient: batches on a mount, past the kernel; emberfs.batch
                                tells what all clients do
    emberfs.native              NativeClient: the same without a mount, of an `ember://` URL or
                                the folder of a cluster
    emberfs.posix               PosixClient: the same by plain system calls, on any file system
    emberfs.opening             open_client: whichever of them fits a path or URL
    emberfs.ffrecord, .pack     RecordReader, RecordWriter, PackedFolder: many samples, or
                                small files, in one file
    emberfs.publish             CheckpointFolder; files and folders that appear
                                complete or not at all
    emberfs.kvcache             KVCache: blocks by key, shared by many processes
    emberfs.torch.datasets      RecordDataset, PackedDataset, FilesDataset,
                                ArrayDataset, RecordStream
    emberfs.torch.loader        BlockSampler, ResumableLoader: go on at exactly the next batch
    emberfs.torch.checkpoint    CheckpointWriter, CheckpointReader for torch.distributed.checkpoint
    emberfs.torch.saving        save, load, save_tensors, load_tensors
    emberfs.fsspec              `ember://` for pandas, pyarrow, DuckDB, zarr ...: needs no
                                import, fsspec finds it

Each of them has help(): `import emberfs.ring; help(emberfs.ring)`.

Needs the standard library only; what needs more (`emberfs.torch`, `emberfs.kvcache`,
`emberfs.fsspec`) is imported by its own name.
"""
