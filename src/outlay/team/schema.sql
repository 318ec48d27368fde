-- Books of a team: spend logs that machines share. Running it again changes nothing.
--
-- outlay_owner owns everything and cannot log in; who is granted it sets limits and members.
-- Whoever is granted outlay_launcher reads, and appends through the functions turn, lock, append,
-- append_after and keep alone. outlay_reader reads.
--
-- Every function that others may call sets the search_path, or is one expression with names that are
-- bound here. Those that only these call have theirs: nobody else may call them, and setting it again
-- takes longer than a look-up. Where a function is called for each line, it is in PL/pgSQL, which
-- keeps its plans for the session, or is such an expression.

BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;

DO $roles$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'outlay_owner') THEN
    CREATE ROLE outlay_owner NOLOGIN;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'outlay_launcher') THEN
    CREATE ROLE outlay_launcher NOLOGIN;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'outlay_reader') THEN
    CREATE ROLE outlay_reader NOLOGIN;
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
  currency text NOT NULL DEFAULT '',
  latest_day text NOT NULL DEFAULT '',
  limited boolean NOT NULL DEFAULT false
);

-- The tables below name a book without a foreign key: only functions that have locked the book write
-- to them, no book is ever removed, and the keys would take a third of an append's time.

-- One entry for each line that has a hash; before are lines without one, which it covers.
CREATE TABLE IF NOT EXISTS outlay.entry (
  book integer NOT NULL,
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

-- What is spent and held, and what open holds cost per hour, in micro-units: for all (whole), a
-- project (lab), a user or a team; at all times, in a UTC month or on a UTC day.
CREATE TABLE IF NOT EXISTS outlay.counter (
  book integer NOT NULL,
  of text NOT NULL,
  name text NOT NULL,
  period text NOT NULL,
  captured bigint NOT NULL,
  held bigint NOT NULL,
  rate bigint NOT NULL,
  PRIMARY KEY (book, of, name, period)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS outlay.open_hold (
  book integer NOT NULL,
  hold text NOT NULL,
  lab text NOT NULL,
  "user" text NOT NULL,
  team text NOT NULL,
  day text NOT NULL,
  held bigint NOT NULL,
  rate bigint NOT NULL,
  PRIMARY KEY (book, hold)
) WITH (fillfactor = 50);

-- The limits that entries set, in micro-units, for good and for a time; period is a kind of period,
-- name may be * for each that has none of its own. An amount of NULL is no limit.
CREATE TABLE IF NOT EXISTS outlay.ceiling (
  book integer NOT NULL,
  of text NOT NULL,
  name text NOT NULL,
  period text NOT NULL,
  lasting bigint,
  lasting_refuses boolean NOT NULL DEFAULT true,
  passing bigint,
  passing_refuses boolean NOT NULL DEFAULT true,
  passing_until timestamptz,
  PRIMARY KEY (book, of, name, period)
);

-- Who is in which team, from the first day to before the last; and for whom a service may act,
-- where * is everybody.
CREATE TABLE IF NOT EXISTS outlay.member (
  login text NOT NULL CHECK (login <> ''),
  team text NOT NULL CHECK (team NOT IN ('', '*')),
  since date NOT NULL DEFAULT (clock_timestamp() AT TIME ZONE 'UTC')::date,
  until date CHECK (until >= since),
  PRIMARY KEY (login, team, since)
);
-- A team's owner may settle the holds of that team.
ALTER TABLE outlay.member ADD COLUMN IF NOT EXISTS owns boolean NOT NULL DEFAULT false;
CREATE TABLE IF NOT EXISTS outlay.service (
  login text NOT NULL CHECK (login <> ''),
  acts_for text NOT NULL CHECK (acts_for <> ''),
  PRIMARY KEY (login, acts_for)
);

-- What the entries up to seq amount to, so that a new process need not read them all. A row is
-- that of the largest seq up to the snapshot's; NULL where there is none any more.
CREATE TABLE IF NOT EXISTS outlay.snapshot (
  book integer NOT NULL,
  shape text NOT NULL,
  seq bigint NOT NULL,
  root bytea NOT NULL,
  login text NOT NULL DEFAULT session_user,
  PRIMARY KEY (book, shape, seq)
);
CREATE TABLE IF NOT EXISTS outlay.fold (
  book integer NOT NULL,
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
  RAISE EXCEPTION 'the head of a book only moves forward' USING ERRCODE = 'OUT03';
END
$$;

CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON outlay.entry
  FOR EACH STATEMENT EXECUTE FUNCTION outlay.refuse();
CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON outlay.snapshot
  FOR EACH STATEMENT EXECUTE FUNCTION outlay.refuse();
CREATE OR REPLACE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON outlay.fold
  FOR EACH STATEMENT EXECUTE FUNCTION outlay.refuse();
CREATE OR REPLACE TRIGGER pruned_only BEFORE DELETE ON outlay.snapshot
  FOR EACH STATEMENT WHEN (current_setting('outlay.pruning', true) IS DISTINCT FROM 'on')
  EXECUTE FUNCTION outlay.refuse();
CREATE OR REPLACE TRIGGER pruned_only BEFORE DELETE ON outlay.fold
  FOR EACH STATEMENT WHEN (current_setting('outlay.pruning', true) IS DISTINCT FROM 'on')
  EXECUTE FUNCTION outlay.refuse();
CREATE OR REPLACE TRIGGER append_only BEFORE DELETE OR TRUNCATE ON outlay.book
  FOR EACH STATEMENT EXECUTE FUNCTION outlay.refuse();
CREATE OR REPLACE TRIGGER forward_only BEFORE UPDATE ON outlay.book
  FOR EACH ROW WHEN (NEW.id <> OLD.id OR NEW.name <> OLD.name OR NEW.seq < OLD.seq
                     OR NEW.bytes < OLD.bytes OR (NEW.seq = OLD.seq AND NEW.hash <> OLD.hash))
  EXECUTE FUNCTION outlay.grow();

-- Locks a book until the transaction ends, and returns its head.
CREATE OR REPLACE FUNCTION outlay.locked(book_name text) RETURNS outlay.book
LANGUAGE plpgsql AS $$
DECLARE
  head outlay.book;
BEGIN
  PERFORM pg_advisory_xact_lock(1869968500, b.id) FROM outlay.book b WHERE b.name = book_name;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no book of this name' USING ERRCODE = 'OUT02';
  END IF;
  SELECT * INTO head FROM outlay.book b WHERE b.name = book_name;
  RETURN head;
END
$$;

-- The same, for lines that follow entry after_seq.
CREATE OR REPLACE FUNCTION outlay.locked_at(book_name text, after_seq bigint) RETURNS outlay.book
LANGUAGE plpgsql AS $$
DECLARE
  head outlay.book := outlay.locked(book_name);
BEGIN
  IF head.seq <> after_seq THEN
    RAISE EXCEPTION 'the book has % entries, not %', head.seq, after_seq USING ERRCODE = 'OUT01';
  END IF;
  RETURN head;
END
$$;

CREATE OR REPLACE FUNCTION outlay.lock(book_name text) RETURNS outlay.book
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN outlay.locked(book_name);
END
$$;

CREATE OR REPLACE FUNCTION outlay.now() RETURNS timestamptz
LANGUAGE sql VOLATILE
RETURN clock_timestamp();

CREATE OR REPLACE FUNCTION outlay.is_owner() RETURNS boolean
LANGUAGE sql STABLE
RETURN pg_has_role(session_user, 'outlay_owner', 'MEMBER');

-- The teams of a user on a UTC day.
CREATE OR REPLACE FUNCTION outlay.teams_on(login text, day date) RETURNS text[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN ARRAY(
    SELECT DISTINCT m.team FROM outlay.member m
    WHERE m.login = teams_on.login AND m.since <= teams_on.day
      AND (m.until IS NULL OR teams_on.day < m.until)
    ORDER BY m.team
  );
END
$$;

CREATE OR REPLACE FUNCTION outlay.teams_of(login text, day text) RETURNS text[]
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN outlay.teams_on(login, day::date);
END
$$;

-- Whether the login may write lines about a user's money.
CREATE OR REPLACE FUNCTION outlay.acts_for(login text) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN login = session_user OR EXISTS (
    SELECT FROM outlay.service s
    WHERE s.login = session_user AND s.acts_for IN (acts_for.login, '*')
  );
END
$$;

-- Whether the login owns a team today.
CREATE OR REPLACE FUNCTION outlay.owns_team(name text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
  day date := (outlay.now() AT TIME ZONE 'UTC')::date;
BEGIN
  RETURN name <> '' AND EXISTS (
    SELECT FROM outlay.member m WHERE m.login = session_user AND m.team = name AND m.owns
      AND m.since <= day AND (m.until IS NULL OR day < m.until)
  );
END
$$;

-- Whether the login may settle a hold, watch what it pays for, and take notes of it.
CREATE OR REPLACE FUNCTION outlay.may_settle("user" text, team text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN outlay.acts_for("user") OR outlay.is_owner() OR outlay.owns_team(team);
END
$$;

-- Makes the commit of this transaction wait for the disk; returns how.
CREATE OR REPLACE FUNCTION outlay.make_durable() RETURNS text
LANGUAGE sql VOLATILE
RETURN set_config('synchronous_commit', CASE current_setting('synchronous_commit')
  WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true);

-- What a transaction begins with, in one statement with prepared plans: sets how long anybody may
-- be blocked, locks the book if it writes, and returns settings, head and the entries of the oldest
-- and of the last snapshot.
CREATE OR REPLACE FUNCTION outlay.turn(
  book_name text, writes boolean, lock_patience text, idle_patience text, rows_shape text,
  OUT version integer, OUT login text, OUT fsync text, OUT durable text, OUT id integer,
  OUT seq bigint, OUT hash text, OUT first text, OUT bytes bigint, OUT lines bigint,
  OUT oldest bigint, OUT kept bigint, OUT at_micros bigint, OUT teams text[]
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  head outlay.book;
  present timestamptz;
BEGIN
  version := outlay.version();
  login := session_user;
  fsync := current_setting('fsync');
  durable := outlay.make_durable();
  lock_patience := set_config('lock_timeout', lock_patience, true);
  idle_patience := set_config('idle_in_transaction_session_timeout', idle_patience, true);
  IF writes THEN
    head := outlay.lock(book_name);
  ELSE
    SELECT * INTO head FROM outlay.book b WHERE b.name = book_name;
  END IF;
  id := head.id;
  seq := head.seq;
  hash := head.hash;
  first := head.first;
  bytes := head.bytes;
  lines := head.lines;
  SELECT min(s.seq), max(s.seq) INTO oldest, kept
  FROM outlay.snapshot s WHERE s.book = head.id AND s.shape = rows_shape;
  present := outlay.now();
  at_micros := extract(epoch FROM present) * 1000000;
  teams := outlay.teams_of(login, to_char(present AT TIME ZONE 'UTC', 'YYYY-MM-DD'));
END
$$;

-- An amount of a line in micro-units.
CREATE OR REPLACE FUNCTION outlay.micros(amount text) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN coalesce(ceil(amount::numeric * 1000000), 0)::bigint;

-- Adds to the counters of every scope in which money of a payer and a day counts.
CREATE OR REPLACE FUNCTION outlay.count(
  book integer, paid outlay.open_hold, captured bigint, held bigint, rate bigint
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO outlay.counter AS c (book, of, name, period, captured, held, rate)
  SELECT count.book, who.of, who.name, times.period, count.captured, count.held, count.rate
  FROM (VALUES ('whole', ''), ('lab', paid.lab), ('user', paid."user"), ('team', paid.team))
         AS who (of, name),
       (VALUES (''), (paid.day), (left(paid.day, 7))) AS times (period)
  WHERE who.name <> '' OR who.of IN ('whole', 'lab')
  ON CONFLICT ON CONSTRAINT counter_pkey DO UPDATE
  SET captured = c.captured + EXCLUDED.captured, held = c.held + EXCLUDED.held,
      rate = c.rate + EXCLUDED.rate;
END
$$;

-- Refuses what exceeds a limit in force, or has none. The counters have the line already.
CREATE OR REPLACE FUNCTION outlay.check_limits(
  book integer, paid outlay.open_hold, at timestamptz, per_hour boolean
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  row record;
  applies boolean := false;
BEGIN
  FOR row IN
    SELECT l.of, l.name, l.period AS kind, l.amount,
           CASE l.period WHEN 'hour' THEN c.rate ELSE c.captured + c.held END AS total
    FROM (
      SELECT DISTINCT ON (who.of, k.period) who.of, who.name, k.period,
             CASE WHEN at < k.passing_until THEN k.passing ELSE k.lasting END AS amount,
             CASE WHEN at < k.passing_until THEN k.passing_refuses ELSE k.lasting_refuses END AS refuses
      FROM (VALUES ('whole', ''), ('lab', paid.lab), ('user', paid."user"), ('team', paid.team))
             AS who (of, name)
      JOIN outlay.ceiling k
        ON k.book = check_limits.book AND k.of = who.of AND k.name IN (who.name, '*')
      WHERE (who.name <> '' OR who.of IN ('whole', 'lab'))
        AND CASE WHEN at < k.passing_until THEN k.passing ELSE k.lasting END IS NOT NULL
      ORDER BY who.of, k.period, k.name = '*'
    ) l
    JOIN outlay.counter c
      ON c.book = check_limits.book AND c.of = l.of AND c.name = l.name AND c.period =
         CASE l.period WHEN 'day' THEN paid.day WHEN 'month' THEN left(paid.day, 7) ELSE '' END
    WHERE l.refuses
  LOOP
    applies := true;
    IF row.total > row.amount AND (row.kind <> 'hour' OR per_hour) THEN
      RAISE EXCEPTION 'it exceeds the limit of % % %', row.of, row.name, coalesce(nullif(row.kind, ''), 'at all times')
        USING ERRCODE = 'OUT04';
    END IF;
  END LOOP;
  IF NOT applies THEN
    RAISE EXCEPTION 'no limit applies to user %', paid."user" USING ERRCODE = 'OUT04';
  END IF;
END
$$;

-- Refuses a value that few lines have, of a type or a form that none has.
CREATE OR REPLACE FUNCTION outlay.check_rare_values(raw json, entry jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  object text;
BEGIN
  IF jsonb_typeof(entry -> 'rate') <> 'number' OR jsonb_typeof(entry -> 'limit') <> 'number'
     OR jsonb_typeof(entry -> 'torn_from') <> 'number'
     OR jsonb_typeof(entry -> 'torn_bytes') <> 'number'
     OR (entry ->> 'until') !~ '^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z)?$' THEN
    RAISE EXCEPTION 'a line with a value that none has' USING ERRCODE = 'OUT01';
  END IF;
  FOREACH object IN ARRAY '{caps,rental,part,detail}'::text[] LOOP
    CONTINUE WHEN NOT entry ? object;
    IF jsonb_typeof(entry -> object) <> 'object' THEN
      RAISE EXCEPTION 'a line with a value that none has' USING ERRCODE = 'OUT01';
    END IF;
    IF cardinality(ARRAY(SELECT json_object_keys(raw -> object)))
       <> jsonb_array_length(jsonb_path_query_array(entry -> object, '$.*')) THEN
      RAISE EXCEPTION 'a line with a name twice' USING ERRCODE = 'OUT01';
    END IF;
  END LOOP;
  IF entry ? 'rental' THEN
    IF coalesce(jsonb_typeof(entry #> '{rental,name}'), '') <> 'string'
       OR coalesce(jsonb_typeof(entry #> '{rental,rate}'), '') <> 'string'
       OR coalesce(jsonb_typeof(entry #> '{rental,started}'), '') <> 'string'
       OR coalesce(jsonb_typeof(entry #> '{rental,deadline}'), '') <> 'string'
       OR coalesce(jsonb_typeof(entry #> '{rental,vendor,name}'), '') <> 'string'
       OR coalesce(jsonb_typeof(entry #> '{rental,vendor,list}'), '') <> 'array'
       OR coalesce(jsonb_typeof(entry #> '{rental,vendor,terminate}'), '') <> 'array' THEN
      RAISE EXCEPTION 'a rental that lacks something' USING ERRCODE = 'OUT01';
    END IF;
  END IF;
END
$$;

-- Refuses a line that outlay could not read, or of a kind, a currency or an amount that none has.
-- raw is the line as it was written, entry what is read of it. PL/pgSQL prepares an expression anew
-- in each transaction: what few lines need is in a statement of its own.
CREATE OR REPLACE FUNCTION outlay.check_form(head outlay.book, raw json, entry jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  kind text := coalesce(entry ->> 'kind', '');
  required text[];
  others text[];
BEGIN
  CASE kind
  WHEN 'hold' THEN
    required := '{hold,lab,day,ts,op_label,v}';
    others := '{hold,lab,day,caps,key,by,rental,user,team,via,rate}';
  WHEN 'capture' THEN
    required := '{lab,day,ts,op_label,v}';
    others := '{lab,day,hold,key,basis,part,user,team,via}';
  WHEN 'extend' THEN
    required := '{hold,ts,op_label,v}';
    others := '{hold,caps,key}';
  WHEN 'void' THEN
    required := '{hold,reason,ts,op_label,v}';
    others := '{hold,reason,key}';
  WHEN 'correct' THEN
    required := '{lab,day,reason,ts,op_label,v}';
    others := '{lab,day,reason,hold,key,user,team}';
  WHEN 'note' THEN
    required := '{event,ts,op_label,v}';
    others := '{event,hold,detail,key}';
  WHEN 'limit' THEN
    required := '{of,by,reason,ts,op_label,v}';
    others := '{of,by,reason,name,period,limit,enforce,until,request,requested_by,key}';
  WHEN 'seal' THEN
    required := '{torn_from,torn_bytes,ts,op_label,v}';
    others := '{torn_from,torn_bytes}';
  ELSE
    RAISE EXCEPTION 'a line of an unknown kind' USING ERRCODE = 'OUT01';
  END CASE;
  IF NOT entry ?& required
     OR entry - others - '{kind,ts,op_label,currency,v,hash,estimated,actual,ceiling}'::text[] <> '{}'
     OR entry - '{v,estimated,actual,ceiling,rate,limit,torn_from,torn_bytes,caps,rental,part,detail}'
          ::text[] @? '$.* ? (@.type() != "string")'
     OR (entry -> 'v')::text NOT IN ('1', '2')
     OR jsonb_typeof(entry -> 'estimated') <> 'number'
     OR jsonb_typeof(entry -> 'actual') <> 'number'
     OR jsonb_typeof(entry -> 'ceiling') <> 'number'
     OR (entry ->> 'ts') !~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$'
     OR (entry ->> 'day') !~ '^\d{4}-\d\d-\d\d$' THEN
    RAISE EXCEPTION 'a line that lacks a name, or has one or a value that none has'
      USING ERRCODE = 'OUT01';
  END IF;
  IF entry ?| '{rate,limit,until,torn_from,torn_bytes,caps,rental,part,detail}' THEN
    PERFORM outlay.check_rare_values(raw, entry);
  END IF;
  -- Programs differ in which of two values of the same name they take.
  IF cardinality(ARRAY(SELECT json_object_keys(raw)))
     <> jsonb_array_length(jsonb_path_query_array(entry, '$.*')) THEN
    RAISE EXCEPTION 'a line with a name twice' USING ERRCODE = 'OUT01';
  END IF;
  IF (entry ->> 'currency') IS NULL OR head.currency NOT IN ('', entry ->> 'currency') THEN
    RAISE EXCEPTION 'a line of another currency' USING ERRCODE = 'OUT01';
  END IF;
  IF (CASE kind WHEN 'correct' THEN entry - 'actual' ELSE entry END) @? '$.* ? (@ < 0)' THEN
    RAISE EXCEPTION 'a line with a negative amount' USING ERRCODE = 'OUT01';
  END IF;
END
$$;

-- Refuses a line about money that is not the login's, or of another day than the present one.
CREATE OR REPLACE FUNCTION outlay.check_payer(head outlay.book, entry jsonb, is_hold boolean)
RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  "user" text := coalesce(entry ->> 'user', '');
  team text := coalesce(entry ->> 'team', '');
  via text := coalesce(entry ->> 'via', '');
  day text := coalesce(entry ->> 'day', '');
  is_wrong boolean := false;
BEGIN
  IF "user" <> session_user THEN
    is_wrong := via <> session_user OR NOT outlay.acts_for("user");
  ELSE
    is_wrong := via <> '';
  END IF;
  IF is_wrong THEN
    RAISE EXCEPTION '% may not act for user %', session_user, "user" USING ERRCODE = 'OUT05';
  END IF;
  IF day IS DISTINCT FROM greatest(left(entry ->> 'ts', 10), head.latest_day) THEN
    RAISE EXCEPTION 'it counts on %, which is not today', day USING ERRCODE = 'OUT05';
  END IF;
  IF team <> '' THEN
    is_wrong := team <> ALL (outlay.teams_on("user", day::date));
  ELSIF is_hold THEN
    is_wrong := EXISTS (
      SELECT FROM outlay.member m
      WHERE m.login = "user" AND m.since <= day::date AND (m.until IS NULL OR day::date < m.until)
    );
  END IF;
  IF is_wrong THEN
    RAISE EXCEPTION 'user % is not in team %', "user", team USING ERRCODE = 'OUT05';
  END IF;
END
$$;

-- Refuses a line that only an owner may write, or that states another author than the login.
CREATE OR REPLACE FUNCTION outlay.check_author(head outlay.book, entry jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  kind text := entry ->> 'kind';
  event text := coalesce(entry ->> 'event', '');
BEGIN
  IF kind IN ('limit', 'seal') OR event IN ('accepted', 'offline-allowance', 'limit-denied')
     OR (kind = 'correct' AND (entry ->> 'actual')::numeric < 0)
     OR (event = 'ceiling-raised' AND head.limited) THEN
    IF NOT outlay.is_owner() THEN
      RAISE EXCEPTION 'only an owner may write this line' USING ERRCODE = 'OUT05';
    END IF;
  END IF;
  IF (kind = 'limit' AND (entry ->> 'by') IS DISTINCT FROM session_user)
     OR (event IN ('accepted', 'limit-requested', 'limit-denied', 'offline-allowance')
         AND (entry -> 'detail' ->> 'by') IS DISTINCT FROM session_user) THEN
    RAISE EXCEPTION 'it states another author than %', session_user USING ERRCODE = 'OUT05';
  END IF;
END
$$;

-- Refuses a line that contradicts those before it, or that the login may not write; counts it. That
-- a hold is opened once, and settled once, is what the indexes of entries ensure.
CREATE OR REPLACE FUNCTION outlay.apply(head outlay.book, entry jsonb) RETURNS outlay.book
LANGUAGE plpgsql AS $$
DECLARE
  kind text := entry ->> 'kind';
  named text := coalesce(entry ->> 'hold', '');
  estimated bigint := outlay.micros(entry ->> 'estimated');
  actual bigint := 0;
  at timestamptz := (entry ->> 'ts')::timestamptz;
  time timestamptz := outlay.now();
  paid outlay.open_hold;
BEGIN
  IF at > time + interval '1 second' OR at < time - interval '2 minutes' THEN
    RAISE EXCEPTION 'its time is not that of the database' USING ERRCODE = 'OUT05';
  END IF;
  IF kind IN ('limit', 'seal', 'correct', 'note') THEN
    PERFORM outlay.check_author(head, entry);
  END IF;
  IF kind IN ('capture', 'correct') THEN
    actual := outlay.micros(entry ->> 'actual');
  END IF;
  CASE kind
  WHEN 'hold' THEN
    IF named = '' THEN
      RAISE EXCEPTION 'a hold without an id' USING ERRCODE = 'OUT01';
    END IF;
    PERFORM outlay.check_payer(head, entry, true);
    paid := ROW(head.id, named, entry ->> 'lab', coalesce(entry ->> 'user', ''),
                coalesce(entry ->> 'team', ''), entry ->> 'day', estimated, 0);
    IF entry ? 'rate' THEN
      paid.rate := outlay.micros(entry ->> 'rate');
    END IF;
    INSERT INTO outlay.open_hold SELECT paid.*;
    PERFORM outlay.count(head.id, paid, 0, estimated, paid.rate);
    head.latest_day := paid.day;  -- Which is no earlier one.
    IF head.limited AND (estimated > 0 OR (entry ->> 'rental') IS NULL) THEN
      PERFORM outlay.check_limits(head.id, paid, at, paid.rate > 0);
    END IF;
  WHEN 'extend', 'capture', 'void' THEN
    IF kind = 'capture' AND named = '' THEN
      PERFORM outlay.check_payer(head, entry, false);
      paid := ROW(head.id, '', entry ->> 'lab', coalesce(entry ->> 'user', ''),
                  coalesce(entry ->> 'team', ''), entry ->> 'day', 0, 0);
      PERFORM outlay.count(head.id, paid, actual, 0, 0);
      head.latest_day := greatest(head.latest_day, paid.day);
      RETURN head;
    END IF;
    IF kind = 'extend' THEN
      UPDATE outlay.open_hold h SET held = h.held + estimated
      WHERE h.book = head.id AND h.hold = named RETURNING * INTO paid;
    ELSE
      DELETE FROM outlay.open_hold h WHERE h.book = head.id AND h.hold = named
      RETURNING * INTO paid;
    END IF;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'no open hold has the id of this line' USING ERRCODE = 'OUT01';
    END IF;
    IF paid."user" <> session_user THEN  -- Of a team's money its owner may settle, not hold more.
      IF NOT outlay.may_settle(paid."user", CASE kind WHEN 'extend' THEN '' ELSE paid.team END) THEN
        RAISE EXCEPTION 'the hold is not of user %', session_user USING ERRCODE = 'OUT05';
      END IF;
    END IF;
    IF kind = 'extend' THEN
      PERFORM outlay.count(head.id, paid, 0, estimated, 0);
      IF head.limited THEN
        PERFORM outlay.check_limits(head.id, paid, at, false);
      END IF;
    ELSE
      IF kind = 'capture' AND ((entry ->> 'lab') IS DISTINCT FROM paid.lab
                               OR (entry ->> 'day') IS DISTINCT FROM paid.day) THEN
        RAISE EXCEPTION 'it counts elsewhere than its hold' USING ERRCODE = 'OUT01';
      END IF;
      PERFORM outlay.count(
        head.id, paid, CASE kind WHEN 'capture' THEN actual ELSE 0 END, -paid.held, -paid.rate);
    END IF;
  WHEN 'correct' THEN
    paid := ROW(head.id, '', entry ->> 'lab', coalesce(entry ->> 'user', ''),
                coalesce(entry ->> 'team', ''), entry ->> 'day', 0, 0);
    IF NOT outlay.acts_for(paid."user") AND NOT outlay.is_owner() THEN
      RAISE EXCEPTION 'what it corrects was not spent by %', session_user USING ERRCODE = 'OUT05';
    END IF;
    PERFORM outlay.count(head.id, paid, actual, 0, 0);
  WHEN 'note' THEN
    IF named <> '' AND NOT outlay.is_owner() AND NOT EXISTS (
      SELECT FROM outlay.entry e, LATERAL (SELECT convert_from(e.line, 'UTF8')::json) AS l (line)
      WHERE e.book = head.id AND e.hold = named AND e.kind = 'hold'
        AND outlay.may_settle(coalesce(l.line ->> 'user', ''), coalesce(l.line ->> 'team', ''))
    ) THEN
      RAISE EXCEPTION 'the hold is not of user %', session_user USING ERRCODE = 'OUT05';
    END IF;
    IF (entry ->> 'event') = 'accepted' THEN
      head.latest_day := left(entry ->> 'ts', 10);
    END IF;
  WHEN 'limit' THEN
    PERFORM outlay.set_ceiling(head.id, entry);
    head.limited := true;
  ELSE NULL;
  END CASE;
  RETURN head;
END
$$;

CREATE OR REPLACE FUNCTION outlay.set_ceiling(book integer, entry jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  new outlay.ceiling;
  refuses boolean := coalesce(entry ->> 'enforce', 'refuse') = 'refuse';
  amount bigint := CASE WHEN (entry ->> 'limit') IS NOT NULL THEN outlay.micros(entry ->> 'limit') END;
BEGIN
  new := ROW(book, entry ->> 'of', coalesce(entry ->> 'name', ''), coalesce(entry ->> 'period', ''),
             NULL, true, NULL, true, NULL);
  IF new.of NOT IN ('whole', 'lab', 'user', 'team') OR (new.name = '') <> (new.of = 'whole')
     OR new.period NOT IN ('', 'day', 'month', 'hour') THEN
    RAISE EXCEPTION 'a limit of no scope' USING ERRCODE = 'OUT01';
  END IF;
  INSERT INTO outlay.ceiling SELECT new.* ON CONFLICT DO NOTHING;
  IF coalesce(entry ->> 'until', '') = '' THEN
    UPDATE outlay.ceiling k SET lasting = amount, lasting_refuses = refuses, passing_until = NULL
    WHERE (k.book, k.of, k.name, k.period) = (new.book, new.of, new.name, new.period);
  ELSE
    UPDATE outlay.ceiling k SET passing = amount, passing_refuses = refuses,
      passing_until = (entry ->> 'until')::timestamptz
    WHERE (k.book, k.of, k.name, k.period) = (new.book, new.of, new.name, new.period);
  END IF;
END
$$;

-- Appends lines after entry after_seq, each with the lines before it that it covers. A line ends
-- in ,"hash":"<64 digits>"} and a newline: the SHA-256 of the hash before it and of every byte from
-- there to that comma. Lines that are copied from another log are not judged: they were.
CREATE OR REPLACE FUNCTION outlay.append_lines(
  head outlay.book, befores bytea[], new_lines bytea[], copied boolean
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  line bytea;
  before bytea := '';
  size integer;
  digest text;
  raw json;
  entry jsonb;
BEGIN
  FOR i IN 1 .. coalesce(array_length(new_lines, 1), 0) LOOP
    line := new_lines[i];
    size := length(line);
    IF befores IS NOT NULL THEN
      before := befores[i];
      IF before IS NULL OR length(before) > 0
         AND (NOT copied OR substring(before FROM length(before)) <> '\x0a') THEN
        RAISE EXCEPTION 'line % is outside the chain', head.seq + 1 USING ERRCODE = 'OUT01';
      END IF;
      head.bytes := head.bytes + length(before);
      FOR at IN 0 .. length(before) - 1 LOOP
        head.lines := head.lines + (get_byte(before, at) = 10)::integer;
      END LOOP;
    END IF;
    digest := encode(sha256(
      CASE head.seq WHEN 0 THEN head.hash ELSE head.hash || E'\n' END::bytea
      || before || substring(line FROM 1 FOR greatest(size - 76, 0))), 'hex');
    IF size < 78 OR position('\x0a'::bytea IN line) <> size
       OR substring(line FROM size - 75) <> convert_to(',"hash":"' || digest || E'"}\n', 'UTF8')
    THEN
      RAISE EXCEPTION 'line % is outside the chain', head.seq + 1 USING ERRCODE = 'OUT01';
    END IF;
    raw := convert_from(line, 'UTF8')::json;
    entry := raw::jsonb;
    IF NOT copied THEN
      PERFORM outlay.check_form(head, raw, entry);
      head := outlay.apply(head, entry);
    END IF;
    head.seq := head.seq + 1;
    INSERT INTO outlay.entry (book, seq, before, line, hash, kind, hold, key)
    VALUES (
      head.id, head.seq, before, line, digest, entry ->> 'kind',
      coalesce(entry ->> 'hold', ''), coalesce(entry ->> 'key', '')
    );
    head.hash := digest;
    head.bytes := head.bytes + size;
    head.lines := head.lines + 1;
    head.currency := entry ->> 'currency';
    IF head.seq = 1 THEN
      head.first := digest;
    END IF;
  END LOOP;
  UPDATE outlay.book b
  SET seq = head.seq, hash = head.hash, first = head.first, bytes = head.bytes, lines = head.lines,
      currency = head.currency, latest_day = head.latest_day, limited = head.limited
  WHERE b.id = head.id AND b.seq < head.seq;
  RETURN head.seq;
END
$$;

-- Appends lines in a transaction that has taken its turn.
CREATE OR REPLACE FUNCTION outlay.append(
  book_name text, after_seq bigint, befores bytea[], new_lines bytea[]
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN outlay.append_lines(outlay.locked_at(book_name, after_seq), befores, new_lines, false);
END
$$;

-- Appends lines in a transaction of their own, if the last entry of the book is still the one after
-- which a client decided to write them. Returns whether it is.
CREATE OR REPLACE FUNCTION outlay.append_after(
  book_id integer, after_seq bigint, after_hash text, lock_patience text, new_lines bytea[]
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  head outlay.book;
  durable text;
BEGIN
  lock_patience := set_config('lock_timeout', lock_patience, true);
  IF current_setting('synchronous_commit') <> 'on' THEN
    durable := outlay.make_durable();
  END IF;
  PERFORM pg_advisory_xact_lock(1869968500, book_id);
  SELECT * INTO head FROM outlay.book b WHERE b.id = book_id;
  IF head.seq = after_seq AND head.hash = after_hash AND current_setting('fsync') = 'on' THEN
    after_seq := outlay.append_lines(head, NULL, new_lines, false);
    RETURN true;
  END IF;
  RETURN false;
END
$$;

-- Copies the lines of another log into an empty book; seed then states what they amount to.
CREATE OR REPLACE FUNCTION outlay.copy(
  book_name text, after_seq bigint, befores bytea[], new_lines bytea[]
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT outlay.is_owner() THEN
    RAISE EXCEPTION 'only an owner may copy a log into a book' USING ERRCODE = 'OUT05';
  END IF;
  IF EXISTS (SELECT FROM outlay.counter c JOIN outlay.book b ON b.id = c.book WHERE b.name = book_name)
  THEN
    RAISE EXCEPTION 'the book is in use' USING ERRCODE = 'OUT01';
  END IF;
  RETURN outlay.append_lines(outlay.locked_at(book_name, after_seq), befores, new_lines, true);
END
$$;

-- States what the lines that were copied amount to, as JSON rows of the tables.
CREATE OR REPLACE FUNCTION outlay.seed(
  book_name text, counters json, holds json, ceilings json, day text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  head outlay.book := outlay.locked(book_name);
BEGIN
  IF NOT outlay.is_owner() OR EXISTS (SELECT FROM outlay.counter c WHERE c.book = head.id) THEN
    RAISE EXCEPTION 'only an owner may copy a log into an empty book' USING ERRCODE = 'OUT05';
  END IF;
  INSERT INTO outlay.counter SELECT head.id, r.of, r.name, r.period, r.captured, r.held, r.rate
  FROM json_populate_recordset(NULL::outlay.counter, counters) r;
  INSERT INTO outlay.open_hold
  SELECT head.id, r.hold, r.lab, r."user", r.team, r.day, r.held, r.rate
  FROM json_populate_recordset(NULL::outlay.open_hold, holds) r;
  PERFORM outlay.set_ceiling(head.id, each.value)
  FROM jsonb_array_elements(ceilings::jsonb) each;
  UPDATE outlay.book b SET latest_day = day, limited = json_array_length(ceilings) > 0
  WHERE b.id = head.id;
END
$$;

-- Keeps rows of the fold up to the last entry; with root, they are a snapshot from then on.
CREATE OR REPLACE FUNCTION outlay.keep(
  book_name text, rows_shape text, names text[], keys bytea[], new_values bytea[], new_root bytea
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  head outlay.book := outlay.locked(book_name);
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

-- For owners: removes snapshots except the newest, and the rows that none of these need; with
-- newest 0 all of them, and the next process folds the entries anew. Returns how many rows went.
-- Under the lock: no transaction that writes loses the rows that it began with, and one that only
-- reads goes on seeing them.
CREATE OR REPLACE FUNCTION outlay.prune(book_name text, newest integer DEFAULT 3) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  head outlay.book := outlay.locked(book_name);
  kept record;
  gone bigint;
  removed bigint := 0;
BEGIN
  PERFORM set_config('outlay.pruning', 'on', true);
  FOR kept IN
    SELECT s.shape, (array_agg(s.seq ORDER BY s.seq DESC))[newest] AS seq
    FROM outlay.snapshot s WHERE s.book = head.id GROUP BY s.shape
  LOOP
    CONTINUE WHEN kept.seq IS NULL AND newest > 0;  -- There are no more than that.
    DELETE FROM outlay.snapshot s
    WHERE s.book = head.id AND s.shape = kept.shape AND (newest <= 0 OR s.seq < kept.seq);
    DELETE FROM outlay.fold f
    WHERE f.book = head.id AND f.shape = kept.shape AND (newest <= 0 OR f.seq <= kept.seq AND (
      f.value IS NULL OR EXISTS (
        SELECT FROM outlay.fold later
        WHERE later.book = f.book AND later.shape = f.shape AND later.name = f.name
          AND sha256(later.key) = sha256(f.key) AND later.seq > f.seq AND later.seq <= kept.seq
      )
    ));
    GET DIAGNOSTICS gone = ROW_COUNT;
    removed := removed + gone;
  END LOOP;
  PERFORM set_config('outlay.pruning', '', true);
  DELETE FROM outlay.beat t WHERE t.book = head.id AND NOT EXISTS (
    SELECT FROM outlay.open_hold h WHERE h.book = head.id AND h.hold = t.hold
  );
  RETURN removed;
END
$$;

REVOKE ALL ON SCHEMA outlay FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA outlay FROM PUBLIC, outlay_launcher, outlay_reader;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outlay FROM PUBLIC, outlay_launcher, outlay_reader;
GRANT USAGE ON SCHEMA outlay TO outlay_launcher, outlay_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA outlay TO outlay_launcher, outlay_reader;
GRANT EXECUTE ON FUNCTION
  outlay.version(), outlay.now(), outlay.is_owner(), outlay.teams_of(text, text),
  outlay.acts_for(text), outlay.make_durable(), outlay.turn(text, boolean, text, text, text)
  TO outlay_launcher, outlay_reader;
GRANT EXECUTE ON FUNCTION
  outlay.lock(text), outlay.append(text, bigint, bytea[], bytea[]),
  outlay.append_after(integer, bigint, text, text, bytea[]),
  outlay.keep(text, text, text[], bytea[], bytea[], bytea)
  TO outlay_launcher;

-- Beats: when the process of a hold (a rental's watcher, a lease) last said that it runs, by the
-- database's clock. They are outside of the chain, since they change no balance.
CREATE TABLE IF NOT EXISTS outlay.beat (
  book integer NOT NULL,
  hold text NOT NULL,
  watcher text NOT NULL,
  at timestamptz NOT NULL,
  PRIMARY KEY (book, hold, watcher)
);

-- Records a beat for an open hold that the login may settle; a beat of others counts nothing. It need
-- not survive a power failure.
CREATE OR REPLACE FUNCTION outlay.beat(book_name text, of_hold text, by_watcher text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  INSERT INTO outlay.beat AS one (book, hold, watcher, at)
  SELECT b.id, of_hold, by_watcher, outlay.now()
  FROM outlay.book b JOIN outlay.open_hold h ON h.book = b.id AND h.hold = of_hold
  WHERE b.name = book_name AND outlay.may_settle(h."user", h.team)
  ON CONFLICT (book, hold, watcher) DO UPDATE SET at = EXCLUDED.at;
END
$$;

REVOKE ALL ON outlay.beat FROM PUBLIC, outlay_launcher, outlay_reader;
REVOKE ALL ON FUNCTION outlay.beat(text, text, text) FROM PUBLIC, outlay_launcher;
GRANT SELECT ON outlay.beat TO outlay_launcher, outlay_reader;
GRANT EXECUTE ON FUNCTION outlay.beat(text, text, text) TO outlay_launcher;

RESET ROLE;
COMMIT;
