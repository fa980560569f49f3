# Actor and evaluator in an image of yours that holds Isaac Gym, IsaacGymEnvs and Python 3.8: see docs/isaac-gym.md.
# Not tested with the simulator, which is proprietary.
ARG ISAAC_GYM_IMAGE
FROM ${ISAAC_GYM_IMAGE}
USER root
# The simulator's Python, where `python` is another one: /opt/conda/envs/rlgpu/bin/python
ARG ISAAC_GYM_PYTHON=python
COPY deploy/constraints/actor-py38.txt pyproject.toml README.md /opt/shoal-source/
COPY proto /opt/shoal-source/proto
COPY services /opt/shoal-source/services
COPY configs /opt/shoal-source/configs
# The simulator's torch and numpy stay as they are: neither is asked for.
RUN "${ISAAC_GYM_PYTHON}" -m pip install --no-cache-dir -c /opt/shoal-source/actor-py38.txt "/opt/shoal-source[actor]" \
    && ln -sf "$("${ISAAC_GYM_PYTHON}" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')/shoal" /usr/local/bin/shoal \
    && rm -r /opt/shoal-source
RUN groupadd --gid 10001 shoal \
    && useradd --uid 10001 --gid shoal --home-dir /var/lib/shoal --no-create-home --shell /usr/sbin/nologin shoal \
    && install -d -o shoal -g shoal -m 0750 /var/lib/shoal /var/cache/shoal /pki && install -d /etc/shoal
# Isaac Gym compiles its bindings of torch at the first start, and keeps them here.
ENV PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 HOME=/tmp TORCH_EXTENSIONS_DIR=/var/cache/shoal SHOAL_LOG__STYLE=json \
    SHOAL_RUN__FOLDER=/var/lib/shoal/runs
USER shoal
WORKDIR /etc/shoal
ENTRYPOINT ["shoal"]
CMD ["actor"]
ARG SHOAL_VERSION=0.1.0
ARG SHOAL_REVISION=unknown
LABEL org.opencontainers.image.title=shoal-isaac-gym-actor org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.version=${SHOAL_VERSION} org.opencontainers.image.revision=${SHOAL_REVISION}
