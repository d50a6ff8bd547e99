"""Each promise as the query that finds where it was broken.

A history is a database with a table for each kind of operation, named like its class, with the columns
`process`, `at_ns` and its fields; a place is partition, ledger, entry and batch.
"""

from __future__ import annotations

_SAME_PLACE = "{0}.partition = {1}.partition AND {0}.ledger = {1}.ledger AND {0}.entry = {1}.entry"
_SAME_MESSAGE = "{0}.topic = {1}.topic AND {0}.producer = {1}.producer AND {0}.number = {1}.number"


def _seeks(table: str, of: str) -> str:
    """How many seeks of the subscription the table has up to an operation."""
    return f"""(SELECT COUNT(*) FROM {table} k WHERE k.topic = {of}.topic
        AND k.subscription = {of}.subscription AND k.at_ns <= {of}.at_ns)"""


_LAST_ERA = """(SELECT COUNT(*) FROM SeekInvoked k
    WHERE k.topic = {0}.topic AND k.subscription = {0}.subscription)"""

STEPS = (
    "CREATE INDEX stored_places ON Stored (topic, partition, ledger, entry, batch)",
    """CREATE TABLE ordinals AS
        SELECT *, ROW_NUMBER() OVER (PARTITION BY topic, partition ORDER BY rowid) AS ordinal, rowid
        FROM Stored""",
    "CREATE INDEX ordinal_places ON ordinals (topic, partition, ledger, entry, batch)",
    "CREATE INDEX stored_messages ON Stored (topic, producer, number)",
    "CREATE INDEX invoked_messages ON SendInvoked (topic, producer, number)",
    "CREATE INDEX invoked_seeks ON SeekInvoked (topic, subscription, at_ns)",
    "CREATE INDEX answered_seeks ON SeekOk (topic, subscription, at_ns)",
    # A place's rank is its row in `stored`: the log was read in its order.
    f"""CREATE TABLE delivered AS
        SELECT d.*, s.rowid AS rank, s.producer AS stored_producer, s.number AS stored_number,
               s.digest AS stored_digest, {_seeks("SeekInvoked", "d")} AS era
        FROM Received d LEFT JOIN Stored s
        ON s.topic = d.topic AND {_SAME_PLACE.format("s", "d")} AND s.batch = d.batch""",
    "CREATE INDEX delivered_ranks ON delivered (topic, subscription, rank, at_ns)",
    # The acknowledgment of a batch holds once one consumer has a receipt for each of its messages, and until
    # a seek: an era has as many answered seeks before each acknowledgment as begun ones before a delivery.
    f"""CREATE TABLE done AS
        SELECT a.topic, a.subscription, s.rowid AS rank, a.era, a.process, MIN(a.at_ns) AS at_ns FROM (
            SELECT process, topic, subscription, era, partition, ledger, entry, MAX(first_ns) AS at_ns
            FROM (SELECT *, MIN(at_ns) AS first_ns
                  FROM (SELECT a.*, {_seeks("SeekOk", "a")} AS era FROM AcknowledgeOk a)
                  GROUP BY process, topic, subscription, era, partition, ledger, entry, batch)
            GROUP BY process, topic, subscription, era, partition, ledger, entry
            HAVING COUNT(*) >= MAX(batch_size)) a
        JOIN Stored s ON s.topic = a.topic AND {_SAME_PLACE.format("s", "a")}
        GROUP BY a.topic, a.subscription, s.rowid, a.era, a.process""",
    "CREATE INDEX done_ranks ON done (topic, subscription, rank)",
    # Up to which rank a cumulative acknowledgment reaches; one inside a batch leaves the whole batch.
    f"""CREATE TABLE reached AS
        SELECT c.process, c.at_ns, c.topic, c.subscription, c.partition, c.ledger, c.entry,
               {_seeks("SeekOk", "c")} AS era,
               CASE WHEN c.batch < 0 OR c.batch = c.batch_size - 1 THEN MAX(s.rowid)
               ELSE MIN(s.rowid) - 1 END AS rank
        FROM CumulativeOk c JOIN Stored s ON s.topic = c.topic AND {_SAME_PLACE.format("s", "c")}
        GROUP BY c.rowid""",
    # Where a row of a read is, in the log and in its partition.
    f"""CREATE TABLE reads AS
        SELECT r.*, r.rowid AS row, s.rowid AS rank, s.ordinal, s.producer AS stored_producer,
               s.number AS stored_number, s.digest AS stored_digest
        FROM ReadRow r LEFT JOIN ordinals s
        ON s.topic = r.topic AND {_SAME_PLACE.format("s", "r")} AND s.batch = r.batch""",
    "CREATE INDEX read_ranks ON reads (topic, reader, rank)",
    # What a consumer shows may have been in its queue already when another's acknowledgment was confirmed:
    # only to those that opened behind that it may not be given any more.
    """CREATE TABLE openings AS
        SELECT process, topic, subscription, MIN(at_ns) AS at_ns FROM ConsumerOpening
        GROUP BY process, topic, subscription""",
    "CREATE INDEX opening_processes ON openings (process, topic, subscription)",
    "CREATE INDEX reached_times ON reached (topic, subscription, partition, era, at_ns)",
    # The rank that a seek goes to; 0 for the first message.
    f"""CREATE TABLE sought AS
        SELECT k.topic, k.subscription, k.at_ns, k.partition, COALESCE(s.rowid, 0) AS rank,
               EXISTS (SELECT 1 FROM SeekOk o WHERE o.topic = k.topic AND o.subscription = k.subscription
                       AND o.process = k.process AND o.seek = k.seek) AS is_answered
        FROM SeekInvoked k LEFT JOIN Stored s
        ON s.topic = k.topic AND {_SAME_PLACE.format("s", "k")} AND s.batch = k.batch""",
    # Each message's first showing; the bare columns of a MIN are those of its row.
    """CREATE TABLE firsts AS
        SELECT d.topic, d.subscription, d.process, d.partition, d.key, d.rank, MIN(d.at_ns) AS at_ns,
               d.producer, d.number
        FROM delivered d WHERE d.rank IS NOT NULL GROUP BY d.topic, d.subscription, d.rank""",
)


def _out_of_order(ordering: str, grouping: str, condition: str) -> str:
    return f"""
        SELECT * FROM (
            SELECT f.topic, f.subscription, f.process, f.{grouping}, f.producer, f.number, f.rank, f.at_ns,
                   LAG(f.rank) OVER (PARTITION BY f.topic, f.subscription, f.process, f.{grouping}
                                     ORDER BY f.at_ns, f.rank) AS rank_before
            FROM firsts f JOIN DeclaredSubscription u USING (topic, subscription)
            WHERE u.ordering = '{ordering}' {condition})
        WHERE rank_before > rank"""


_NOT_DELAYED = f"""AND NOT EXISTS (SELECT 1 FROM SendInvoked i
    WHERE {_SAME_MESSAGE.format("i", "f")} AND i.due_ms > 0)"""

RULES: dict[str, str] = {
    "confirmed messages that are not in the log": f"""
        SELECT c.topic, c.producer, c.number, c.partition, c.ledger, c.entry, c.batch FROM SendOk c
        WHERE NOT EXISTS (SELECT 1 FROM Stored s WHERE {_SAME_MESSAGE.format("s", "c")})""",
    "messages that are not where their receipts said": f"""
        SELECT c.*, s.partition AS is_partition, s.ledger AS is_ledger, s.entry AS is_entry,
               s.batch AS is_batch
        FROM SendOk c JOIN Stored s ON {_SAME_MESSAGE.format("s", "c")}
        WHERE c.ledger IS NOT NULL AND NOT ({_SAME_PLACE.format("s", "c")} AND s.batch = c.batch)""",
    "messages of the log that nobody sent": f"""
        SELECT s.* FROM Stored s JOIN DeclaredTopic t USING (topic) WHERE t.letters_of IS NULL
        AND NOT EXISTS (SELECT 1 FROM SendInvoked i WHERE {_SAME_MESSAGE.format("i", "s")})""",
    "dead letters that are not in the log they are from": """
        SELECT s.* FROM Stored s JOIN DeclaredTopic t USING (topic) WHERE t.letters_of IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM Stored o
            WHERE o.topic = t.letters_of AND o.producer = s.producer AND o.number = s.number)""",
    "messages in the log although their sending was refused": f"""
        SELECT r.*, s.ledger, s.entry FROM SendFailed r JOIN Stored s ON {_SAME_MESSAGE.format("s", "r")}""",
    "messages stored more than once": """
        SELECT s.topic, s.producer, s.number, COUNT(*) AS times
        FROM Stored s JOIN DeclaredTopic t USING (topic)
        WHERE t.letters_of IS NULL
        GROUP BY s.topic, s.producer, s.number HAVING COUNT(*) > 1""",
    "messages whose bytes changed on their way into the log": f"""
        SELECT s.* FROM Stored s JOIN SendInvoked i ON {_SAME_MESSAGE.format("i", "s")}
        WHERE i.digest <> s.digest OR i.key <> s.key""",
    "messages of a producer out of order in the log": """
        SELECT * FROM (
            SELECT s.*, LAG(s.number) OVER (PARTITION BY s.topic, s.partition, s.producer ORDER BY s.rowid)
                AS number_before
            FROM Stored s JOIN DeclaredTopic t USING (topic) WHERE t.letters_of IS NULL)
        WHERE number_before >= number""",
    "keys whose messages are in several partitions": """
        SELECT topic, key, COUNT(DISTINCT partition) AS partitions FROM Stored WHERE key <> ''
        GROUP BY topic, key HAVING COUNT(DISTINCT partition) > 1""",
    "messages that a subscription gave to nobody": """
        SELECT u.subscription, s.* FROM DeclaredSubscription u JOIN Stored s USING (topic)
        JOIN DeclaredTopic t USING (topic)
        WHERE NOT (t.ttl_ms > 0
            AND s.published_ms + t.ttl_ms <= (SELECT COALESCE(MAX(highest_ms), 0) FROM ClockShown))
        AND NOT EXISTS (SELECT 1 FROM delivered d
            WHERE d.topic = u.topic AND d.subscription = u.subscription AND d.rank = s.rowid)
        AND NOT (u.ordering = 'none' AND EXISTS (SELECT 1 FROM sought k
            WHERE k.topic = u.topic AND k.subscription = u.subscription
            AND k.partition = s.partition AND k.rank > s.rowid
            AND NOT EXISTS (SELECT 1 FROM sought b
                WHERE b.topic = k.topic AND b.subscription = k.subscription AND b.at_ns > k.at_ns
                AND b.is_answered AND b.rank <= s.rowid)))""",
    "deliveries of what is not in the log": "SELECT * FROM delivered WHERE rank IS NULL",
    "deliveries of other bytes than the log has": """
        SELECT * FROM delivered WHERE rank IS NOT NULL
        AND (producer <> stored_producer OR number <> stored_number OR digest <> stored_digest)""",
    "messages that came to a consumer out of their partition's order": _out_of_order(
        "partition", "partition", ""
    ),
    "messages that came to a consumer out of their key's order": _out_of_order(
        "key", "key", f"AND f.key <> '' {_NOT_DELAYED}"
    ),
    "messages that came after the receipt of their acknowledgment": """
        SELECT d.topic, d.subscription, d.process, d.producer, d.number, d.ledger, d.entry, d.batch,
               (d.at_ns - o.at_ns) / 1000000 AS ms_later
        FROM delivered d JOIN done o USING (topic, subscription, rank, era)
        LEFT JOIN openings b ON b.process = d.process AND b.topic = d.topic
            AND b.subscription = d.subscription
        WHERE d.at_ns > o.at_ns AND (o.process = d.process OR o.at_ns < b.at_ns)""",
    "messages that came after the receipt of a cumulative acknowledgment": """
        SELECT * FROM (
            SELECT topic, subscription, partition, process, what, rank, at_ns,
                   MAX(CASE what WHEN '' THEN rank END) OVER (
                       PARTITION BY topic, subscription, partition, process, era
                       ORDER BY at_ns ROWS UNBOUNDED PRECEDING) AS reached,
                   reached_before
            FROM (SELECT process, topic, subscription, partition, '' AS what, rank, at_ns, era,
                         NULL AS reached_before FROM reached
                  UNION ALL
                  SELECT d.process, topic, subscription, partition, producer || ' ' || number, rank, d.at_ns,
                         era, (SELECT MAX(c.rank) FROM reached c WHERE c.topic = d.topic
                               AND c.subscription = d.subscription AND c.partition = d.partition
                               AND c.era = d.era AND c.at_ns < b.at_ns)
                         FROM delivered d LEFT JOIN openings b USING (process, topic, subscription)
                         WHERE rank IS NOT NULL
                         AND (topic, subscription) IN (SELECT topic, subscription FROM CumulativeOk)))
        WHERE what <> '' AND rank <= MAX(COALESCE(reached, -1), COALESCE(reached_before, -1))""",
    "messages left over although their acknowledgment had a receipt": f"""
        SELECT r.* FROM Remains r JOIN Stored s ON s.topic = r.topic AND {_SAME_PLACE.format("s", "r")}
            AND s.batch = r.batch
        WHERE EXISTS (SELECT 1 FROM done o
            WHERE o.topic = r.topic AND o.subscription = r.subscription AND o.rank = s.rowid
            AND o.era = {_LAST_ERA.format("r")})
        OR EXISTS (SELECT 1 FROM reached c
            WHERE c.topic = r.topic AND c.subscription = r.subscription AND c.partition = r.partition
            AND c.rank >= s.rowid AND c.era = {_LAST_ERA.format("r")})""",
    "mark-delete positions before what had been acknowledged": f"""
        SELECT m.*, s.ledger AS reached_ledger, s.entry AS reached_entry FROM (
            SELECT m.*, MAX(r.rank) AS rank FROM MarkDeleted m JOIN reached r ON r.topic = m.topic
            AND r.subscription = m.subscription AND r.partition = m.partition AND r.at_ns <= m.asked_at_ns
            AND r.era = {_seeks("SeekInvoked", "m")}
            GROUP BY m.rowid) m
        JOIN Stored s ON s.rowid = m.rank
        WHERE s.partition = m.partition AND (m.ledger, m.entry) < (s.ledger, s.entry)""",
    "delayed messages that came early": f"""
        SELECT d.process, d.topic, d.producer, d.number, i.due_ms - d.wall_ms AS ms_early
        FROM delivered d JOIN SendInvoked i ON {_SAME_MESSAGE.format("i", "d")}
        WHERE i.due_ms > d.wall_ms + (SELECT clock_error_ms FROM limits)
        AND EXISTS (SELECT 1 FROM DeclaredSubscription u WHERE u.topic = d.topic
            AND u.subscription = d.subscription AND u.ordering <> 'partition')""",
    "messages that fail and are not among the dead letters": f"""
        SELECT t.topic, s.producer, s.number FROM DeclaredTopic t JOIN Stored s ON s.topic = t.letters_of
        JOIN SendInvoked i ON {_SAME_MESSAGE.format("i", "s")} AND i.fails
        WHERE NOT EXISTS (SELECT 1 FROM Stored l
            WHERE l.topic = t.topic AND l.producer = s.producer AND l.number = s.number)""",
    "good messages among the dead letters": """
        SELECT l.* FROM DeclaredTopic t JOIN Stored l USING (topic) WHERE t.letters_of IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM SendInvoked i WHERE i.topic = t.letters_of
            AND i.producer = l.producer AND i.number = l.number AND i.fails)""",
    "messages behind a seek that were not given again": """
        SELECT k.topic, k.subscription, k.seek, s.producer, s.number, s.ledger, s.entry
        FROM SeekOk k
        JOIN SeekInvoked i ON i.topic = k.topic AND i.subscription = k.subscription AND i.seek = k.seek
        JOIN Stored s ON s.topic = k.topic AND (k.ledger IS NULL OR (s.partition = k.partition
            AND (s.ledger, s.entry) >= (k.ledger, k.entry)))
        WHERE NOT EXISTS (SELECT 1 FROM SeekInvoked l
            WHERE l.topic = k.topic AND l.subscription = k.subscription AND l.at_ns > i.at_ns)
        AND NOT EXISTS (SELECT 1 FROM delivered d WHERE d.topic = k.topic
            AND d.subscription = k.subscription AND d.rank = s.rowid AND d.at_ns > i.at_ns)""",
    "rows that a read gave and the log has not": """
        SELECT r.* FROM reads r WHERE r.rank IS NULL OR r.producer <> r.stored_producer
        OR r.number <> r.stored_number OR r.digest <> r.stored_digest""",
    "reads with a gap, or out of order": """
        SELECT * FROM (
            SELECT r.*, LAG(r.ordinal) OVER (PARTITION BY r.topic, r.reader, r.partition ORDER BY r.row)
                AS ordinal_before
            FROM reads r WHERE r.rank IS NOT NULL)
        WHERE ordinal <> COALESCE(ordinal_before, 0) + 1""",
    "confirmed messages that a later read did not give": f"""
        SELECT b.topic, b.reader, c.producer, c.number
        FROM ReadBegan b JOIN ReadEnded e USING (topic, reader) JOIN SendOk c USING (topic)
        JOIN Stored s ON {_SAME_MESSAGE.format("s", "c")}
        WHERE c.at_ns < b.at_ns AND NOT EXISTS (SELECT 1 FROM reads r
            WHERE r.topic = b.topic AND r.reader = b.reader AND r.rank = s.rowid)""",
    "messages of a fenced producer behind its successor's": """
        SELECT * FROM (
            SELECT s.topic, s.producer, s.number, o.turn,
                   MAX(o.turn) OVER (PARTITION BY s.topic, s.partition ORDER BY s.rowid) AS turn_before
            FROM Stored s JOIN ProducerOpened o USING (topic, producer))
        WHERE turn_before > turn""",
    # A change without a receipt may take effect at any later time; one that has it holds until the next one.
    "confirmed changes of the catalog that are not there": """
        SELECT v.subject, v.value, MAX(o.value) AS confirmed FROM ValueFound v JOIN ChangeOk o USING (subject)
        GROUP BY v.rowid HAVING v.value < MAX(o.value) AND (v.value = 0 OR EXISTS (
            SELECT 1 FROM ChangeOk e WHERE e.subject = v.subject AND e.value = v.value))""",
    "values of the catalog that nobody set": """
        SELECT v.* FROM ValueFound v WHERE v.value <> 0 AND NOT EXISTS (
            SELECT 1 FROM ChangeInvoked i WHERE i.subject = v.subject AND i.value = v.value)""",
    "non-persistent messages that nobody sent": f"""
        SELECT h.* FROM Heard h WHERE NOT EXISTS (SELECT 1 FROM SendInvoked i
            WHERE {_SAME_MESSAGE.format("i", "h")} AND i.digest = h.digest)""",
    "redelivery counts that fell between two deliveries to a consumer": """
        SELECT * FROM (
            SELECT d.*, LAG(d.redeliveries) OVER (
                PARTITION BY d.topic, d.subscription, d.process, d.rank, d.era ORDER BY d.at_ns)
                AS redeliveries_before
            FROM delivered d WHERE d.rank IS NOT NULL)
        WHERE redeliveries < redeliveries_before""",
}
