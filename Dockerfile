# One image for everything of docker-compose.yml: Spark (from pip), jobpipe, the examples and their data.
FROM python:3.11-slim-bookworm

# Debian 12 is the last release with Java 17.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY pyproject.toml README.md LICENSE pyspark_jobpipe.py ./
COPY conf conf
COPY jobpipe jobpipe
COPY registry registry
COPY examples examples
RUN pip install --no-cache-dir '.[spark,demo]'

# The volumes of docker-compose.yml inherit the owner of these folders.
RUN useradd --create-home jobpipe \
    && install --directory --owner=jobpipe --group=jobpipe --mode=0700 /certs /spool /work
USER jobpipe

WORKDIR /app
COPY examples examples
CMD ["jobpipe", "--help"]
