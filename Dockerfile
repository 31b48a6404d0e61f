# docker build -t boltbox . && docker run --rm --gpus all --ipc host -v "$PWD:/work" boltbox fit --data.dataset pets
# Without a GPU leave out --gpus all: PyTorch's wheel for CUDA runs on the CPU too.
FROM python:3.13-slim
COPY . /boltbox
RUN pip install --no-cache-dir "/boltbox[export]" && rm -r /boltbox
WORKDIR /work
ENTRYPOINT ["boltbox"]
