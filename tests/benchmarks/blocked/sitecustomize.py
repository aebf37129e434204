"""On `PYTHONPATH`, makes Python start without the packages that a machine which only trains may lack.

They are not found, rather than refused: libraries look for some of them, and do without.
"""

import sys
from importlib.machinery import PathFinder

BLOCKED = (
    "adabelief_pytorch av boto3 d4rl faiss grpc gymnasium h5netcdf minari mujoco netCDF4 openai optuna pyproj ray s3fs "
    "sbx soundfile soxr tensorboardX"
).split()


class Without(PathFinder):
    """Finds what is installed, but for these."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in BLOCKED else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Without
