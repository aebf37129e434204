# An image of retable for every node of a cluster: Ray's head, its workers, a server. From the repository's root:
#   docker build --build-arg COMMIT=$(python3 -m retable.platform.commit) --tag REGISTRY/retable:gpu .
#   docker build --build-arg COMMIT=$(python3 -m retable.platform.commit) --tag REGISTRY/retable:cpu --build-arg TORCH=cpu .
# COMMIT (Python 3.11 prints it) goes into the provenance of what the image runs; without it, that has the code's digest.
# The GPU image needs the driver of its node alone: PyTorch's wheels bring CUDA. Another base does as well, if it is
# Debian or Ubuntu with Python 3.11 and venv: --build-arg BASE=...
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS packages
ARG TORCH=gpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY requirements.lock /tmp/
# --compile: byte code is made here, once, not by each process of each node. cpu: PyTorch's own wheels for CPUs, of the
# lock's versions, and none of NVIDIA's 4 GB.
RUN python3 -m venv /opt/venv \
    && cp /tmp/requirements.lock /tmp/wanted.lock \
    && if [ "$TORCH" = cpu ]; then \
         grep -vE '^(nvidia-|cuda-|triton==)' /tmp/requirements.lock > /tmp/wanted.lock; \
         set -- --extra-index-url https://download.pytorch.org/whl/cpu; \
       fi \
    && /opt/venv/bin/pip install --compile --no-deps "$@" --requirement /tmp/wanted.lock

FROM ${BASE}
# libgl1 and libglib2.0-0: OpenCV. wget: KubeRay's probes. /data: a volume mounted there is the user's.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgl1 libglib2.0-0 wget \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 1000 ray \
    && useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash ray \
    && install --directory --owner 1000 --group 1000 /data
COPY --from=packages /opt/venv /opt/venv
COPY . /opt/retable
ARG COMMIT=
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation --editable /opt/retable \
    && if [ -n "$COMMIT" ]; then /opt/venv/bin/python -m retable.platform.commit --write "$COMMIT"; fi \
    && /opt/venv/bin/python -m compileall -q /opt/retable
ENV PATH=/opt/venv/bin:$PATH \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    RAY_USAGE_STATS_ENABLED=0
USER 1000:1000
WORKDIR /home/ray
CMD ["retable", "--help"]
