# The command `taskharbor` with every store, and nothing else. Your app goes on top:
#
#   FROM ghcr.io/taskharbor/taskharbor
#   COPY --chown=taskharbor . /app
#   CMD ["worker", "app:harbor"]
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
# Without a network: a folder of wheels in the build context, --build-arg PIP_NO_INDEX=1 and PIP_FIND_LINKS=/src/wheels
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS
WORKDIR /src
COPY . .
RUN python -m venv /opt/taskharbor \
    && /opt/taskharbor/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[all]'

FROM ${BASE}
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin taskharbor \
    && install -d -o taskharbor -g taskharbor /data /app
COPY --from=build /opt/taskharbor /opt/taskharbor
ENV PATH=/opt/taskharbor/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TASKHARBOR_URL=sqlite:////data/jobs.db
USER 10001
WORKDIR /app
VOLUME /data
ENTRYPOINT ["taskharbor"]
CMD ["--help"]
