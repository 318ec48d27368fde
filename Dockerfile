# Serves pages (`web`), watches rentals and alerts (`watch`), or exports to Prometheus (`export prometheus`).
# Not tried yet: nothing that tests outlay can build images. Pages beyond the container need a token:
#   docker run -v BOOKS:/books IMAGE web --host 0.0.0.0 --name HOST --token-file FILE --no-open
FROM python:3.11-slim
COPY . /src
RUN pip install --no-cache-dir "/src[web,postgres,alerts]" && rm -rf /src && useradd --create-home --home-dir /books outlay
USER outlay
ENV OUTLAY_HOME=/books
VOLUME /books
ENTRYPOINT ["outlay"]
CMD ["--help"]
