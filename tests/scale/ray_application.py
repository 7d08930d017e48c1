"""The application for a cluster, with Ray's own proxy in front of it. Each line on stdin is a number of replicas."""

import logging
import sys

import ray
from ray import serve

from tokenmill.scale.replicas import NAME, Arguments, app


def arguments(number):
    engine = {"dtype": "float32", "max_sequences": 4}
    return Arguments(
        model=sys.argv[1], replicas=number, engine=engine, server={"name": "slow"}, replicas_of_a_machine=3
    )


ray.init(address="local", num_cpus=5, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
logging.getLogger("ray.serve").setLevel(logging.ERROR)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
try:
    serve.run(app(arguments(1)), name=NAME)
    for line in sys.stdin:
        serve.run(app(arguments(int(line))), name=NAME)
finally:
    serve.shutdown()
    ray.shutdown()
