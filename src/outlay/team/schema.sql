-- Books of a team: spend logs that machines share. Running it again changes nothing.
--
-- outlay_owner owns everything and cannot log in. Whoever is granted outlay_launcher reads, and
-- appends through the functions lock, append and keep alone.

BEGIN;

DO $roles$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'outlay_owner') THEN
    CREATE ROLE outlay_owner NOLOGIN;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'outlay_launcher') THEN
    CREATE ROLE outlay_launcher NOLOGIN;
  END IF;
END
$roles$;

GRANT outlay_owner TO CURRENT_USER;
CREATE SCHEMA IF NOT EXISTS outlay AUTHORIZATION outlay_owner;
SET LOCAL ROLE outlay_owner;

-- A book, and its head: the number and the hash of the last entry, and what a file would have.
CREATE TABLE IF NOT EXISTS outlay.book (
  id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text NOT NULL UNIQUE CHECK (name <> ''),
  seq bigint NOT NULL DEFAULT 0,
  hash text NOT NULL DEFAULT encode(sha256('outlay spend log'), 'hex'),
  first text NOT NULL DEFAULT '',
  bytes bigint NOT NULL DEFAULT 0,
  lines bigint NOT NULL DEFAULT 0,
  currency text NOT NULL DEFAULT ''
);

-- One entry for each line that has a hash; before are lines without one, which it covers.
CREATE TABLE IF NOT EXISTS outlay.entry (
  book integer NOT NULL REFERENCES outlay.book,
  seq bigint NOT NULL,
  before bytea NOT NULL,
  line bytea NOT NULL,
  hash text NOT NULL,
  kind text NOT NULL,
  hold text NOT NULL,
  key text NOT NULL,
  login text NOT NULL DEFAULT session_user,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (book, seq),
  UNIQUE (book, hash)
);
CREATE UNIQUE INDEX IF NOT EXISTS entry_key ON outlay.entry (book, key) WHERE key <> '';
CREATE UNIQUE INDEX IF NOT EXISTS entry_opens ON outlay.entry (book, hold) WHERE kind = 'hold';
CREATE UNIQUE INDEX IF NOT EXISTS entry_settles ON outlay.entry (book, hold)
  WHERE kind IN ('capture', 'void') AND hold <> '';

-- What the entries up to seq amount to, so that a new process need not read them all. A row is
-- that of the largest seq up to the snapshot's; NULL where there is none any more.
CREATE TABLE IF NOT EXISTS outlay.snapshot (
  book integer NOT NULL REFERENCES outlay.book,
  shape text NOT NULL,
  seq bigint NOT NULL,
  root bytea NOT NULL,
  login text NOT NULL DEFAULT session_user,
  PRIMARY KEY (book, shape, seq)
);
CREATE TABLE IF NOT EXISTS outlay.fold (
  book integer NOT NULL REFERENCES outlay.book,
  shape text NOT NULL,
  name text NOT NULL,
  key bytea NOT NULL,
  seq bigint NOT NULL,
  value bytea
);
CREATE UNIQUE INDEX IF NOT EXISTS fold_key
  ON outlay.fold (book, shape, name, sha256(key), seq DESC);

CREATE OR REPLACE FUNCTION outlay.version() RETURNS integer
LANGUAGE sql IMMUTABLE AS 'SELECT 1';

CREATE OR REPLACE FUNCTION outlay.refuse() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION '% of outlay.% is refused: a book is only appended to', TG_OP, TG_TABLE_NAME
    USING ERRCODE = 'OUT03';
END
$$;

CREATE OR REPLACE FUNCTION outlay.grow() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NEW.id <> OLD.id OR NEW.name <> OLD.name OR NEW.seq <= OLD.seq OR NEW.bytes <= OLD.bytes THEN
    RAISE EXCEPTION 'the head of a book only moves forward' USING ERRCODE = 'OUT03';
  END IF;
  RETURN NEW;
END
$$;

CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON outlay.entry
  FOR EACH STATEMENT EXECUTE FUNCTION outlay.refuse();
CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON outlay.snapshot
  FOR EACH STATEMENT EXECUTE FUNCTION outlay.refuse();
CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON outlay.fold
  FOR EACH STATEMENT EXECUTE FUNCTION outlay.refuse();
CREATE OR REPLACE TRIGGER append_only BEFORE DELETE OR TRUNCATE ON outlay.book
  FOR EACH STATEMENT EXECUTE FUNCTION outlay.refuse();
CREATE OR REPLACE TRIGGER forward_only BEFORE UPDATE ON outlay.book
  FOR EACH ROW EXECUTE FUNCTION outlay.grow();

-- Locks a book until the transaction ends, and returns its head.
CREATE OR REPLACE FUNCTION outlay.lock(book_name text) RETURNS outlay.book
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  head outlay.book;
BEGIN
  SELECT * INTO head FROM outlay.book WHERE name = book_name;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no book of this name' USING ERRCODE = 'OUT02';
  END IF;
  PERFORM pg_advisory_xact_lock(1869968500, head.id);
  SELECT * INTO head FROM outlay.book WHERE name = book_name;
  RETURN head;
END
$$;

-- Refuses a line that contradicts those before it.
CREATE OR REPLACE FUNCTION outlay.check_entry(head outlay.book, entry json) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  kind text := entry ->> 'kind';
  named text := coalesce(entry ->> 'hold', '');
BEGIN
  IF kind NOT IN ('hold', 'extend', 'capture', 'void', 'correct', 'note', 'seal')
     OR kind IS NULL OR (entry ->> 'v') IS DISTINCT FROM '1' THEN
    RAISE EXCEPTION 'a line of an unknown kind or version' USING ERRCODE = 'OUT01';
  END IF;
  IF (entry ->> 'currency') IS NULL OR head.currency NOT IN ('', entry ->> 'currency') THEN
    RAISE EXCEPTION 'a line of another currency' USING ERRCODE = 'OUT01';
  END IF;
  IF (entry ->> 'estimated')::numeric < 0 OR (entry ->> 'ceiling')::numeric < 0
     OR ((entry ->> 'actual')::numeric < 0 AND kind <> 'correct') THEN
    RAISE EXCEPTION 'a line with a negative amount' USING ERRCODE = 'OUT01';
  END IF;
  IF kind NOT IN ('hold', 'extend', 'capture', 'void') OR (kind = 'capture' AND named = '') THEN
    RETURN;
  END IF;
  IF named = '' THEN
    RAISE EXCEPTION 'a line without its hold' USING ERRCODE = 'OUT01';
  END IF;
  IF kind <> 'hold' AND named NOT LIKE 'simple-%' AND NOT EXISTS (
    SELECT FROM outlay.entry e WHERE e.book = head.id AND e.hold = named AND e.kind = 'hold'
  ) THEN
    RAISE EXCEPTION 'no hold has the id of this line' USING ERRCODE = 'OUT01';
  END IF;
  IF kind <> 'hold' AND EXISTS (
    SELECT FROM outlay.entry e
    WHERE e.book = head.id AND e.hold = named AND e.kind IN ('capture', 'void') AND e.hold <> ''
  ) THEN
    RAISE EXCEPTION 'the hold of this line is settled' USING ERRCODE = 'OUT01';
  END IF;
END
$$;

-- Appends lines after entry after_seq, each with the lines before it that it covers. A line ends
-- in ,"hash":"<64 digits>"} and a newline: the SHA-256 of the hash before it and of every byte from
-- there to that comma.
CREATE OR REPLACE FUNCTION outlay.append(
  book_name text, after_seq bigint, befores bytea[], new_lines bytea[]
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  head outlay.book := outlay.lock(book_name);
  line bytea;
  before bytea;
  size integer;
  digest text;
  entry json;
BEGIN
  IF head.seq <> after_seq THEN
    RAISE EXCEPTION 'the book has % entries, not %', head.seq, after_seq USING ERRCODE = 'OUT01';
  END IF;
  FOR i IN 1 .. coalesce(array_length(new_lines, 1), 0) LOOP
    line := new_lines[i];
    before := befores[i];
    size := length(line);
    digest := encode(sha256(
      convert_to(head.hash, 'UTF8') || CASE WHEN head.bytes > 0 THEN '\x0a' ELSE '' END::bytea
      || before || substring(line FROM 1 FOR greatest(size - 76, 0))), 'hex');
    IF size < 78 OR before IS NULL OR position('\x0a'::bytea IN line) <> size
       OR (length(before) > 0 AND substring(before FROM length(before)) <> '\x0a'::bytea)
       OR substring(line FROM size - 75) <> convert_to(',"hash":"' || digest || '"}', 'UTF8') || '\x0a'
    THEN
      RAISE EXCEPTION 'line % is outside the chain', head.seq + 1 USING ERRCODE = 'OUT01';
    END IF;
    entry := convert_from(line, 'UTF8')::json;
    PERFORM outlay.check_entry(head, entry);
    INSERT INTO outlay.entry (book, seq, before, line, hash, kind, hold, key)
    VALUES (
      head.id, head.seq + 1, before, line, digest, entry ->> 'kind',
      coalesce(entry ->> 'hold', ''), coalesce(entry ->> 'key', '')
    );
    head.seq := head.seq + 1;
    head.hash := digest;
    head.first := CASE head.first WHEN '' THEN digest ELSE head.first END;
    head.bytes := head.bytes + length(before) + size;
    head.lines := head.lines + 1;
    FOR at IN 0 .. length(before) - 1 LOOP
      head.lines := head.lines + (get_byte(before, at) = 10)::integer;
    END LOOP;
    head.currency := entry ->> 'currency';
  END LOOP;
  UPDATE outlay.book b
  SET seq = head.seq, hash = head.hash, first = head.first, bytes = head.bytes, lines = head.lines,
      currency = head.currency
  WHERE b.id = head.id AND b.seq < head.seq;
  RETURN head.seq;
END
$$;

-- Keeps rows of the fold up to the last entry; with root, they are a snapshot from then on.
CREATE OR REPLACE FUNCTION outlay.keep(
  book_name text, rows_shape text, names text[], keys bytea[], new_values bytea[], new_root bytea
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  head outlay.book := outlay.lock(book_name);
BEGIN
  INSERT INTO outlay.fold (book, shape, name, key, seq, value)
  SELECT head.id, rows_shape, one.name, one.key, head.seq, one.value
  FROM unnest(names, keys, new_values) AS one (name, key, value);
  IF new_root IS NOT NULL THEN
    INSERT INTO outlay.snapshot (book, shape, seq, root)
    VALUES (head.id, rows_shape, head.seq, new_root);
  END IF;
END
$$;

REVOKE ALL ON SCHEMA outlay FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA outlay FROM PUBLIC, outlay_launcher;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outlay FROM PUBLIC, outlay_launcher;
GRANT USAGE ON SCHEMA outlay TO outlay_launcher;
GRANT SELECT ON outlay.book, outlay.entry, outlay.snapshot, outlay.fold TO outlay_launcher;
GRANT EXECUTE ON FUNCTION
  outlay.version(), outlay.lock(text), outlay.append(text, bigint, bytea[], bytea[]),
  outlay.keep(text, text, text[], bytea[], bytea[], bytea)
  TO outlay_launcher;

-- Beats: when the watcher of a rental last said that it runs, by the database's clock. They are
-- outside of the chain, since they change no balance.
CREATE TABLE IF NOT EXISTS outlay.beat (
  book integer NOT NULL REFERENCES outlay.book,
  hold text NOT NULL,
  watcher text NOT NULL,
  at timestamptz NOT NULL,
  PRIMARY KEY (book, hold, watcher)
);

CREATE OR REPLACE FUNCTION outlay.beat(book_name text, of_hold text, by_watcher text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO outlay.beat AS one (book, hold, watcher, at)
  SELECT b.id, of_hold, by_watcher, clock_timestamp() FROM outlay.book b WHERE b.name = book_name
  ON CONFLICT (book, hold, watcher) DO UPDATE SET at = clock_timestamp();
$$;

REVOKE ALL ON outlay.beat FROM PUBLIC, outlay_launcher;
REVOKE ALL ON FUNCTION outlay.beat(text, text, text) FROM PUBLIC, outlay_launcher;
GRANT SELECT ON outlay.beat TO outlay_launcher;
GRANT EXECUTE ON FUNCTION outlay.beat(text, text, text) TO outlay_launcher;

RESET ROLE;
COMMIT;
