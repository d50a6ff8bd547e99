"""Types of keys and values in a DataFrame of messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from pulsar_ray.data.reading.avro_values import CORRUPT_COLUMN, AvroValues
from pulsar_ray.data.reading.topic_versions import TypedTopics
from pulsar_ray.data.reading.typed_values import REASON_COLUMN
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray_spark.errors import SchemaMismatch
from pulsar_ray_spark.handover import release
from pulsar_ray_spark.schema import block_struct

Bytes = Literal["binary", "string"]
Mode = Literal["permissive", "drop", "fail"]
_MODES = "mode='permissive' keeps such values beside the others, 'drop' leaves them out"
_PLACE = ("topic", "ledger_id", "entry_id", "batch_index")


@dataclass(frozen=True)
class ValueForm:
    """How keys and values appear; at most one of `json`, `avro_schema` and `typed` is given."""

    key_type: Bytes = "string"
    value_type: Bytes = "binary"
    json: StructType | None = None
    avro_schema: str | None = None
    mode: Mode = "permissive"
    typed: TypedTopics | None = None

    @property
    def is_typed(self) -> bool:
        """Whether values have types of their own."""
        return self.json is not None or self.avro_schema is not None or self.typed is not None

    @property
    def _unread_columns(self) -> list[StructField]:
        """The columns that readers add, for values that they cannot read."""
        corrupt, reason = StructField(CORRUPT_COLUMN, BinaryType()), StructField(REASON_COLUMN, StringType())
        if self.typed is not None:
            return [corrupt, reason]
        return [corrupt] if self.avro_schema is not None else []

    def columns_to_read(self, columns: Sequence[str]) -> tuple[str, ...]:
        """The columns of a message that those of the DataFrame are made of.

        Raises InvalidConfiguration if a schema is given, and values are not wanted.
        """
        if not self.is_typed:
            return tuple(columns)
        if "value" not in columns:
            raise InvalidConfiguration(
                f"columns={list(columns)} has no 'value', and a schema is given for values: name 'value' "
                "too, or leave the schema out"
            )
        more = _PLACE if self.mode == "fail" else ()
        return (*columns, *(name for name in more if name not in columns))

    def block_struct(self, columns: Sequence[str]) -> StructType:
        """Spark's schema of blocks with these columns of BLOCK_SCHEMA."""
        return self.stored_struct(block_struct(columns))

    def stored_struct(self, plain: StructType) -> StructType:
        """Spark's schema of rows whose values readers have given the types of a schema."""
        if self.typed is not None:
            kind = self.typed.type
        elif self.avro_schema is not None:
            kind = AvroValues(self.avro_schema).type
        else:
            return plain
        values = StructField("value", from_arrow_type(kind))
        fields = [values if field.name == "value" else field for field in plain]
        return StructType([*fields, *self._unread_columns])

    def made_columns(self, columns: Sequence[str]) -> list[str]:
        """The columns to make of blocks."""
        return [*columns, *(field.name for field in self._unread_columns)]

    def applied(self, messages: DataFrame, columns: Sequence[str]) -> DataFrame:
        """Give keys and values their types, and treat mismatches as `mode` says.

        Raises SchemaMismatch in mode "fail"; of a stream the query fails instead when it takes such a value.
        """
        if not self.is_typed:
            return messages.select([self._plain(name) for name in columns])
        typed = messages if self.json is None else _json_values(messages, self.json)
        mismatched = F.col(CORRUPT_COLUMN).isNotNull()
        if self.mode == "fail" and typed.isStreaming:
            typed = _failing(typed, mismatched)
        elif self.mode == "fail":
            _refuse_any(typed.where(mismatched))
        if self.mode == "drop":
            typed = typed.where(~mismatched)
        shown = [F.col(name) if name == "value" else self._plain(name) for name in columns]
        added = [field.name for field in self._unread_columns] or [CORRUPT_COLUMN]
        return typed.select(*shown, *(map(F.col, added) if self.mode == "permissive" else []))

    def _plain(self, name: str) -> Column:
        if name == "key" and self.key_type == "binary":
            return F.col(name).cast("binary").alias(name)
        if name == "value" and self.value_type == "string":
            return F.col(name).cast("string").alias(name)
        return F.col(name)


AS_STORED = ValueForm()
"""Keys as text, values as bytes."""


def as_value_form(
    spark: SparkSession,
    key_type: str,
    value_type: str,
    schema: StructType | str | None,
    avro_schema: str | None,
    mode: str,
    *,
    is_typed: bool = False,
) -> ValueForm:
    """Normalise the arguments of a read. Raises InvalidConfiguration for a wrong one."""
    for name, given in (("key_type", key_type), ("value_type", value_type)):
        if given not in ("binary", "string"):
            raise InvalidConfiguration(f"{name}={given!r}: give 'binary' or 'string'")
    if mode not in ("permissive", "drop", "fail"):
        raise InvalidConfiguration(f"mode={mode!r}: give 'permissive', 'drop' or 'fail'")
    if (schema is not None) + (avro_schema is not None) + (value_type != "binary") + is_typed > 1:
        raise InvalidConfiguration(
            "schema (of JSON values), avro_schema, typed=True and value_type='string' exclude each other: "
            "give one"
        )
    json = None if schema is None else _json_schema(spark, schema)
    if avro_schema is not None:
        AvroValues(avro_schema)
    return ValueForm(key_type, value_type, json, avro_schema, mode)  # type: ignore[arg-type]


def _json_schema(spark: SparkSession, schema: StructType | str) -> StructType:
    if isinstance(schema, str):
        try:
            schema = spark.createDataFrame([], schema).schema
        except ParseException as error:
            # Spark's text begins with a line end, and draws the place below.
            reason = str(error).strip().partition("\n")[0]
            raise InvalidConfiguration(
                f"schema={schema!r} is no list of columns, such as 'id BIGINT, note STRING': {reason}"
            ) from None
    given: object = schema
    if not isinstance(given, StructType) or not schema.fields:
        raise InvalidConfiguration(
            f"schema={schema!r}: give a StructType, or its columns as text: 'id BIGINT, note STRING'"
        )
    if CORRUPT_COLUMN in schema.names:
        raise InvalidConfiguration(f"schema: {CORRUPT_COLUMN!r} is the column of values that do not fit it")
    return schema


def _json_values(messages: DataFrame, schema: StructType) -> DataFrame:
    """Replace values by structs, and add CORRUPT_COLUMN."""
    whole = StructType([*schema.fields, StructField(CORRUPT_COLUMN, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT_COLUMN}
    read = F.from_json(F.col("value").cast("string"), whole, options)
    rest = [name for name in messages.columns if name != "value"]
    parsed = messages.select(*rest, F.col("value").alias("_bytes"), read.alias("_read"))
    found = F.col("_read")
    is_mismatched = F.col("_bytes").isNotNull() & (found.isNull() | found[CORRUPT_COLUMN].isNotNull())
    struct = F.struct(*(found[name].alias(name) for name in schema.names))
    value = F.when(F.col("_bytes").isNotNull() & ~is_mismatched, struct)
    return parsed.select(
        *rest, value.alias("value"), F.when(is_mismatched, F.col("_bytes")).alias(CORRUPT_COLUMN)
    )


def _failing(messages: DataFrame, mismatched: Column) -> DataFrame:
    """Have an action on a value of a landing fail that does not fit.

    Without the columns that name its message, its file is named.
    """
    if set(_PLACE) <= set(messages.columns):
        place = F.concat(F.concat_ws(":", *_PLACE[1:]), F.lit(" of "), F.col("topic"))
    else:
        place = F.concat(F.lit("in "), F.input_file_name())
    why = (
        F.concat(F.lit(" ("), F.col(REASON_COLUMN), F.lit(")"))
        if REASON_COLUMN in messages.columns
        else F.lit("")
    )
    parts = ("the value of message ", " does not fit the schema", f": {_MODES}")
    begin, middle, end = map(F.lit, parts)
    text = F.concat(begin, place, middle, why, end)
    refused = F.raise_error(text).cast(messages.schema["value"].dataType)
    return messages.withColumn("value", F.when(mismatched, refused).otherwise(F.col("value")))


def _refuse_any(mismatched: DataFrame) -> None:
    told = [name for name in mismatched.columns if name in (*_PLACE, REASON_COLUMN)]
    found = mismatched.select(told).limit(1).collect()
    if found:
        release(mismatched)
        row = found[0]
        why = f" ({row[REASON_COLUMN]})" if REASON_COLUMN in mismatched.columns else ""
        raise SchemaMismatch(
            f"the value of message {row.ledger_id}:{row.entry_id}:{row.batch_index} of {row.topic} does not "
            f"fit the schema{why}: {_MODES}"
        )
