"""Ray Serve is imported here once, without the warning that its own modules give of Pydantic."""

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Using extra keyword arguments on `Field`", DeprecationWarning)
    import ray.serve  # noqa: F401
