"""On `PYTHONPATH`, makes Python start without the packages that a machine which only trains may lack."""

import sys

BLOCKED = (
    "adabelief_pytorch av boto3 d4rl faiss grpc gymnasium h5netcdf minari mujoco netCDF4 openai optuna pyproj ray s3fs "
    "sbx soundfile soxr tensorboardX"
).split()


class Blocker:
    """A finder that comes first, and refuses."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"blocked: {name}")


sys.meta_path.insert(0, Blocker())
