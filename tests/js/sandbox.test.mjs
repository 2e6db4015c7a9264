// The same promises as the Python suite's, through the newest published JavaScript SDK: what differs there is the
// transport (chunked request bodies, other header and query encodings) and how errors are told apart.

import assert from 'node:assert/strict'
import { createHash, randomUUID } from 'node:crypto'
import { after, before, describe, test } from 'node:test'
import {
  AuthenticationError,
  CommandExitError,
  NotFoundError,
  Sandbox,
  SandboxError,
  TimeoutError,
} from 'e2b'

const TIMEOUT_MS = 600_000
const made = []

async function create(template = 'tiny', options = {}) {
  const sandbox = await Sandbox.create(template, { timeoutMs: TIMEOUT_MS, ...options })
  made.push(sandbox)
  return sandbox
}

async function listed(options) {
  const pages = Sandbox.list(options)
  const found = []
  while (pages.hasNext) found.push(...(await pages.nextItems()))
  return found
}

after(async () => {
  for (const sandbox of made) await sandbox.kill()
})

describe('one sandbox', { timeout: 300_000 }, () => {
  let sandbox
  before(async () => {
    sandbox = await create('agent')
  })

  test('is running and described', async () => {
    const info = await sandbox.getInfo()
    assert.equal(info.sandboxId, sandbox.sandboxId)
    assert.equal(info.name, 'agent')
    assert.equal(info.state, 'running')
    assert.ok(info.endAt > info.startedAt)
    assert.equal(await sandbox.isRunning(), true)
  })

  test('runs a command and streams its output', async () => {
    const arrivals = []
    const result = await sandbox.commands.run('for i in 1 2 3; do echo $i; sleep 0.7; done; echo err >&2', {
      onStdout: (chunk) => arrivals.push({ at: Date.now(), chunk }),
    })
    const ended = Date.now()
    assert.equal(result.exitCode, 0)
    assert.equal(result.stdout, '1\n2\n3\n')
    assert.equal(result.stderr, 'err\n')
    assert.ok(ended - arrivals[0].at > 1300, 'the first line was held back')
  })

  test('reports the exit code of a failure', async () => {
    await assert.rejects(sandbox.commands.run('echo out; echo why >&2; exit 7'), (error) => {
      assert.ok(error instanceof CommandExitError)
      assert.equal(error.exitCode, 7)
      assert.equal(error.stdout, 'out\n')
      assert.equal(error.stderr, 'why\n')
      return true
    })
  })

  test('passes environment, folder and user', async () => {
    const result = await sandbox.commands.run('echo "$A $(pwd) $(id -un)"', {
      envs: { A: 'a b é' },
      cwd: '/usr/share',
      user: 'root',
    })
    assert.equal(result.stdout, 'a b é /usr/share root\n')
  })

  test('background command: list, connect, kill', async () => {
    const command = await sandbox.commands.run('while :; do echo tick; sleep 0.3; done', { background: true })
    const processes = await sandbox.commands.list()
    assert.ok(processes.some((process) => process.pid === command.pid))
    await command.disconnect()

    let seen = ''
    const again = await sandbox.commands.connect(command.pid, { onStdout: (chunk) => (seen += chunk) })
    while (!seen.includes('tick\ntick\n')) await new Promise((resolve) => setTimeout(resolve, 100))
    assert.equal(await again.kill(), true)
    await assert.rejects(again.wait(), CommandExitError)
    assert.equal(await sandbox.commands.kill(command.pid), false)
  })

  test('standard input', async () => {
    const command = await sandbox.commands.run('cat; echo ended', { background: true, stdin: true })
    await sandbox.commands.sendStdin(command.pid, 'first é\n')
    await sandbox.commands.closeStdin(command.pid)
    assert.equal((await command.wait()).stdout, 'first é\nended\n')
  })

  test('timeout ends a command', async () => {
    await assert.rejects(sandbox.commands.run('sleep 60', { timeoutMs: 1000 }), TimeoutError)
  })

  test('text and bytes round trip, also under awkward names', async () => {
    const bytes = new Uint8Array(70_000).map((_, index) => index % 251)
    for (const name of ['plain', 'a 中.txt', '100%+.txt', 'q?&#.bin']) {
      await sandbox.files.write(`/home/user/js/${name}`, 'text é')
      assert.equal(await sandbox.files.read(`/home/user/js/${name}`), 'text é')
      await sandbox.files.write(`/home/user/js/${name}`, bytes.buffer)
      assert.deepEqual(await sandbox.files.read(`/home/user/js/${name}`, { format: 'bytes' }), bytes)
    }
    const entries = await sandbox.files.list('/home/user/js')
    assert.deepEqual(entries.map((entry) => entry.name).sort(), ['100%+.txt', 'a 中.txt', 'plain', 'q?&#.bin'])
  })

  test('empty file', async () => {
    await sandbox.files.write('/home/user/empty', '')
    assert.equal(await sandbox.files.read('/home/user/empty'), '')
  })

  test('several megabytes arrive unchanged', async () => {
    const data = new Uint8Array(8 << 20).map((_, index) => (index * 2654435761) >>> 24)
    await sandbox.files.write('/home/user/large', data.buffer)
    const result = await sandbox.commands.run('sha256sum < /home/user/large')
    assert.equal(result.stdout.split(' ')[0], createHash('sha256').update(data).digest('hex'))
    const back = await sandbox.files.read('/home/user/large', { format: 'bytes' })
    assert.equal(Buffer.compare(Buffer.from(back), Buffer.from(data)), 0)
  })

  test('folders: make, exists, rename, remove', async () => {
    assert.equal(await sandbox.files.makeDir('/home/user/d/e'), true)
    assert.equal(await sandbox.files.makeDir('/home/user/d/e'), false)
    await sandbox.files.write('/home/user/d/e/f', 'x')
    await sandbox.files.rename('/home/user/d/e/f', '/home/user/d/g')
    assert.equal(await sandbox.files.exists('/home/user/d/e/f'), false)
    assert.equal(await sandbox.files.read('/home/user/d/g'), 'x')
    await sandbox.files.remove('/home/user/d')
    assert.equal(await sandbox.files.exists('/home/user/d'), false)
  })

  test('a missing file is not found', async () => {
    await assert.rejects(sandbox.files.read('/home/user/missing'), NotFoundError)
    await assert.rejects(sandbox.files.getInfo('/home/user/missing'), NotFoundError)
  })

  test('connect and setTimeout', async () => {
    await sandbox.files.write('/home/user/who', 'first')
    const again = await Sandbox.connect(sandbox.sandboxId)
    assert.equal(await again.files.read('/home/user/who'), 'first')
    await again.setTimeout(1_200_000)
    const { endAt } = await again.getInfo()
    assert.ok(endAt.getTime() - Date.now() > 1_100_000)
  })
})

describe('several sandboxes', { timeout: 300_000 }, () => {
  test('are listed by metadata and paged', async () => {
    const mark = randomUUID()
    const ids = []
    for (let index = 0; index < 3; index++) {
      ids.unshift((await create('tiny', { metadata: { mark, 'odd key': `a&b=${index}` } })).sandboxId)
    }
    const all = await listed({ query: { metadata: { mark } } })
    assert.deepEqual(all.map((info) => info.sandboxId), ids)
    const one = await listed({ query: { metadata: { mark, 'odd key': 'a&b=1' } } })
    assert.deepEqual(one.map((info) => info.sandboxId), [ids[1]])
    const paged = await listed({ query: { metadata: { mark } }, limit: 2 })
    assert.deepEqual(paged.map((info) => info.sandboxId), ids)
  })

  test('killed: kill says so, use fails with the reason', async () => {
    const sandbox = await create()
    assert.equal(await sandbox.kill(), true)
    assert.equal(await sandbox.kill(), false)
    assert.equal(await sandbox.isRunning(), false)
    await assert.rejects(sandbox.commands.run('true'), (error) => {
      assert.match(error.message, /not running|killed|timeout/)
      return true
    })
    await assert.rejects(sandbox.getInfo(), NotFoundError)
    await assert.rejects(Sandbox.connect(sandbox.sandboxId), NotFoundError)
  })

  test('have private disks', async () => {
    const [one, other] = [await create(), await create()]
    await one.files.write('/home/user/mine', 'one')
    assert.equal(await other.files.exists('/home/user/mine'), false)
  })
})

describe('refusals', { timeout: 60_000 }, () => {
  test('a wrong key', async () => {
    const apiKey = `e2b_${'0'.repeat(40)}`
    await assert.rejects(Sandbox.create('tiny', { apiKey }), AuthenticationError)
  })

  test('an unknown template', async () => {
    await assert.rejects(Sandbox.create('no-such-template'), (error) => {
      assert.ok(error instanceof SandboxError)
      assert.match(error.message, /no-such-template/)
      return true
    })
  })
})
