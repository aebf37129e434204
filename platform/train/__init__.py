"""One training in one process, with plain PyTorch and without Ray.

Level 8 of 15. A Tune trial, each worker of a Ray Train group and a notebook run the very same loop.

    `loop`      train: restore, batches, step, validate, checkpoint, early stop, `result.json`
    `worker`    Worker: rank, world size, device, DDP wrapper and collectives that a learner is given; what it uses
    `seeds`     named random streams, independent for every (seed, stream, place)
    `trackers`  MLflow, Weights & Biases and TensorBoard, by --track
"""
