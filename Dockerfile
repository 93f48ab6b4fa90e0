# The image of Tesela. `make image` fills wheels/ from image/lock and runs this; docs/image.md says how to do it by hand.
# BASE needs CPython 3.11 and Debian's packages: python:3.11-slim-bookworm, or a Debian tree with python3. Nothing of it
# is in the image but the files that the driver needs: no shell, no package installer, no compiler.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS dependencies
ARG TARGETARCH
WORKDIR /build
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0
COPY wheels/tools /build/tools
COPY wheels/${TARGETARCH} /build/wheels
COPY image/lock /build/lock
COPY image/inside /build/inside
RUN ["python3", "-I", "inside/dependencies.py"]

FROM dependencies AS driver
ARG TARGETARCH
ARG CREATED="2020-01-01T00:00:00+00:00"
COPY wheels/tesela /build/tesela
RUN ["python3", "-I", "inside/driver.py"]

FROM scratch
COPY --from=dependencies /image /
COPY --from=driver /image-driver /
ENV PATH=/opt/tesela/bin:/usr/bin LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
ARG VERSION
ARG REVISION
ARG CREATED
LABEL org.opencontainers.image.title="tesela" \
      org.opencontainers.image.description="A DRA driver for NVIDIA GPUs and MIG partitions" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.licenses="Apache-2.0"
ENTRYPOINT ["tesela"]
