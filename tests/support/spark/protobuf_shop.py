"""A shop's orders in Protobuf: the descriptor set that protoc would write, and a value of it, made without protoc."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def descriptor_set() -> bytes:
    field = descriptor_pb2.FieldDescriptorProto
    files = descriptor_pb2.FileDescriptorSet()
    for name, needed in (("timestamp", "Timestamp"), ("duration", "Duration"), ("wrappers", "StringValue")):
        module = __import__(f"google.protobuf.{name}_pb2", fromlist=[needed])
        module.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(f"google/protobuf/{name}.proto" for name in ("timestamp", "duration", "wrappers"))
    file.enum_type.add(name="Kind").value.add(name="NEW", number=0)
    place = file.message_type.add(name="Place")
    place.field.add(name="city", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    for number, (name, kind, label, of) in enumerate(
        [
            ("id", field.TYPE_STRING, field.LABEL_OPTIONAL, ""),
            ("amount", field.TYPE_DOUBLE, field.LABEL_OPTIONAL, ""),
            ("large", field.TYPE_UINT64, field.LABEL_OPTIONAL, ""),
            ("kind", field.TYPE_ENUM, field.LABEL_OPTIONAL, ".shop.Kind"),
            ("tags", field.TYPE_STRING, field.LABEL_REPEATED, ""),
            ("ship", field.TYPE_MESSAGE, field.LABEL_OPTIONAL, ".shop.Place"),
            ("counts", field.TYPE_MESSAGE, field.LABEL_REPEATED, ".shop.Order.CountsEntry"),
            ("at", field.TYPE_MESSAGE, field.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
            ("took", field.TYPE_MESSAGE, field.LABEL_OPTIONAL, ".google.protobuf.Duration"),
            ("note", field.TYPE_MESSAGE, field.LABEL_OPTIONAL, ".google.protobuf.StringValue"),
        ],
        1,
    ):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=of or None)
    loop = file.message_type.add(name="Loop")
    loop.field.add(name="next", number=1, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL, type_name=".shop.Loop")
    return bytes(files.SerializeToString())


def protobuf_order(**values: Any) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set()).file:
        pool.Add(file)
    scalars = {"id": "o1", "amount": 2.5, "large": 2**64 - 1, "kind": 7, **values}
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**scalars)
    order.tags.extend(["a", "b"])
    order.ship.city = "Ulm"
    order.counts["x"] = 1
    order.at.seconds, order.at.nanos = 10, 5_000
    order.took.seconds = 3
    return bytes(order.SerializeToString())
