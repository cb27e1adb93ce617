# optvet on the CPU, for a user without rights; optvet-container runs it with the flags of docs/security.md.
#   docker build -t optvet .
#   docker build -t optvet --build-arg EXTRAS='[onnxsim,onnxslim]' .
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY core core
COPY plugins plugins
COPY container container
COPY known known
RUN pip wheel --no-deps --wheel-dir /wheel .

FROM python:3.12-slim
# With the extra torch: what to install first, and where from, lest gigabytes of CUDA come.
ARG TORCH=""
ARG TORCH_INDEX=""
ARG EXTRAS=""
COPY --from=build /wheel /wheel
RUN python -m venv /opt/optvet
RUN if [ -n "$TORCH" ]; then /opt/optvet/bin/pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} $TORCH; fi
RUN /opt/optvet/bin/pip install --no-cache-dir "$(echo /wheel/optvet-*.whl)$EXTRAS"
RUN useradd --uid 10001 --create-home optvet
ENV PATH=/opt/optvet/bin:$PATH \
    OPTVET_CACHE=/tmp/optvet-cache \
    PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /work
ENTRYPOINT ["optvet"]
CMD ["--help"]
