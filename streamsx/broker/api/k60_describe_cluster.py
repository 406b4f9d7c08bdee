"""60 DescribeCluster: one broker, which is also the controller (KIP-700, KIP-919)."""

from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.service import CLUSTER_ID, NO_OPERATIONS, NODE_ID, Service

VERSIONS = (0, 2)


def answer(_: Service, call: Call) -> ReplyBody:
    """Us, at the address where the client reached us."""
    host, port = call.connection.address
    return {
        "cluster_id": CLUSTER_ID,
        "controller_id": NODE_ID,
        "brokers": [{"broker_id": NODE_ID, "host": host, "port": port}],
        "cluster_authorized_operations": NO_OPERATIONS,
        "endpoint_type": call.body.endpoint_type,
    }
