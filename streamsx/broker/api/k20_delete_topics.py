"""20 DeleteTopics: with their records and committed offsets; by id since 6 (KIP-516)."""

from streamsx.broker.connection import Call
from streamsx.broker.events import ReplyBody
from streamsx.broker.service import Service
from streamsx.kafka.errors import ErrorCode

VERSIONS = (1, 6)
STRUCTS_SINCE = 6


def answer(service: Service, call: Call) -> ReplyBody:
    """Each topic by itself."""
    body = call.body
    if call.version >= STRUCTS_SINCE:
        asked = [(topic.name, topic.topic_id) for topic in body.topics]
    else:
        asked = [(name, b"") for name in body.topic_names]
    responses = []
    for name, topic_id in asked:
        topic = service.topics.find(name, topic_id)
        if topic is None:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name else ErrorCode.UNKNOWN_TOPIC_ID
            responses.append({"name": name, "topic_id": topic_id, "error_code": unknown})
        else:
            service.topics.delete(topic)
            responses.append({"name": topic.name, "topic_id": topic.id})
    return {"responses": responses}
