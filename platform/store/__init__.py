"""Everything that lasts: files on a disk or a bucket, and the folder of each run.

Level 6 of 15: it knows nothing of tasks or Ray, and imports torch only to read or write tensors.

    `storage`     Storage: atomic files below a path or URI, retried while a disk or bucket does not answer
    `patience`    retries, with growing pauses, of what a disk or bucket does not answer
    `cache`       Snapshot: one listing of a storage, from which a plan or report reads, with an index of finished runs
    `run`         RunFolder: config, log, checkpoints, weights, scores and result of one run
    `lease`       Lease: which attempt owns a run; heartbeats, fencing numbers, stale leases
    `weights`     checkpoints of others, read without unpickling, and kept by digest
    `hdf5`        entries of HDF5 files of others, none of which lies in another file
    `provenance`  commit, code digests, versions, device and command behind a number
    `bundle`      one file of finished runs, as it is sent; `records`: the shapes of its files
    `download`    published datasets by HTTP: resumed, checked on arrival, bounded
    `query`       the runs of a storage: state, age, size, differences
"""
