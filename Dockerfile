# One wheel, two entry points. The build context is made by `python -m hack.images build`: the project's wheel, the wheels
# of requirements.lock (collected beforehand, so that nothing is downloaded in here) and the lock itself.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS runtime
# The lock decides whether this layer is made anew; the wheels that it names are seen, but not kept.
COPY requirements.lock /opt/billing-shards/
RUN --mount=type=bind,source=wheels,target=/mnt/wheels \
    python3 -m venv /opt/billing-shards \
    && /opt/billing-shards/bin/pip install --no-cache-dir --no-index --find-links /mnt/wheels \
        --require-hashes --requirement /opt/billing-shards/requirements.lock
COPY project /opt/billing-shards/wheel
RUN /opt/billing-shards/bin/pip install --no-cache-dir --no-index --no-deps /opt/billing-shards/wheel/*.whl
# No bytecode is written: the root file system may be read-only. Output is not held back: logs are read line by line.
ENV PATH=/opt/billing-shards/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /tmp

FROM runtime AS controller
ENTRYPOINT ["billing-shards-controller"]

FROM runtime AS claimer
ENTRYPOINT ["billing-shards"]
