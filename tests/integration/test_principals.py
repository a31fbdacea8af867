"""The look-up of a token's owner runs with its owner's rights: a caller's tables never stand in for ours."""

from tests.conftest import Person
from tests.desk import Desk


async def test_a_callers_temporary_tables_do_not_make_it_somebody_else(desk: Desk, people: dict[str, Person]) -> None:
    async with desk.db.transaction("local") as tx:
        await tx.execute("CREATE TEMP TABLE users (LIKE users INCLUDING DEFAULTS) ON COMMIT DROP")
        await tx.execute("CREATE TEMP TABLE api_tokens (LIKE api_tokens INCLUDING DEFAULTS) ON COMMIT DROP")
        await tx.execute("GRANT SELECT ON pg_temp.users, pg_temp.api_tokens TO PUBLIC")
        admin = people["admin"]
        await tx.execute(
            "INSERT INTO pg_temp.users (id, tenant_id, name, display_name, roles) "
            "VALUES ($1, 'local', 'x', 'x', '{admin}')",
            admin.user_id,
        )
        await tx.execute(
            "INSERT INTO pg_temp.api_tokens (token_sha256, tenant_id, user_id) VALUES ('forged', 'local', $1)",
            admin.user_id,
        )
        assert await tx.fetch("SELECT * FROM principal_of('forged')") == []
