// A client of Sheaf that retries calls and checks data. You can require this file. If you run it, it shows its calls
// against a store on 127.0.0.1:7600. It needs the packages of package.json, and the folder api of Sheaf, which is
// next to this file or two folders up.
'use strict'
const { randomBytes } = require('node:crypto')
const path = require('node:path')
const { setTimeout: sleep } = require('node:timers/promises')
const grpc = require('@grpc/grpc-js')
const loader = require('@grpc/proto-loader')
const { crc32c } = require('@aws-crypto/crc32c')

const protos = ['sheaf/record/v1/record.proto', 'google/rpc/status.proto', 'google/rpc/error_details.proto']
const types = loader.loadSync(protos, {
  includeDirs: [
    path.join(__dirname, 'api'),
    path.join(__dirname, '..', '..', 'api'),
    path.dirname(require.resolve('google-proto-files/package.json')),
  ],
  keepCase: true, longs: String, defaults: true, oneofs: true, // oneofs show whether an optional field is set
})
const { RecordService } = grpc.loadPackageDefinition(types).sheaf.record.v1
const { UNAVAILABLE, DEADLINE_EXCEEDED } = grpc.status
// A call is retried after these reasons, and after every UNAVAILABLE.
const AGAIN = new Set(['OVERLOADED', 'WRONG_SHARD', 'NOT_LEADER', 'OUTCOME_UNKNOWN'])
// A group sends these reasons after it has looked for the request id, so they show whether the write was applied.
const KNOWN = new Set(['VERSION_MISMATCH', 'RECORD_EXISTS', 'REQUEST_ID_REUSED'])

/** A call that failed. maybeDone is true if the call is a write that the store may have applied. */
class Failure extends Error {
  constructor({ code, message, details = [] }) { // a google.rpc.Status
    let reason = '', wait = 0
    for (const { type_url, value } of details) {
      const name = type_url.split('/').pop()
      if (name === 'google.rpc.ErrorInfo') {
        const info = types[name].deserialize(value)
        if (info.domain === 'sheaf.dev') reason = info.reason
      } else if (name === 'google.rpc.RetryInfo') {
        const { seconds, nanos } = types[name].deserialize(value).retry_delay
        wait = Number(seconds) * 1000 + nanos / 1e6
      }
    }
    super(`${code} ${reason}: ${message}`)
    const lost = code === UNAVAILABLE && !reason // the connection failed, and Sheaf has not answered
    Object.assign(this, { code, reason, wait })
    this.maybeDone = lost || code === DEADLINE_EXCEEDED || reason === 'OUTCOME_UNKNOWN'
    // An answer about a rate quota has RetryInfo. An answer about a storage quota has none, and a retry is useless.
    const rate = reason === 'QUOTA_EXCEEDED' && wait > 0
    this.again = code === UNAVAILABLE || code === DEADLINE_EXCEEDED || AGAIN.has(reason) || rate
  }
}

function failureOf(err) {
  if (err.code === undefined || !err.metadata) throw err // an error of the program, not of the call
  const [status] = err.metadata.get('grpc-status-details-bin')
  return new Failure(status ? types['google.rpc.Status'].deserialize(status) : { code: err.code, message: err.details })
}

class Store {
  /**
   * milliseconds limits a call with all its attempts. It must be below 120,000, because a group may forget a request id
   * after that time. attempt limits one attempt, in milliseconds.
   */
  constructor(address, { milliseconds = 60_000, attempt = 5_000 } = {}) {
    this.stub = new RecordService(address, grpc.credentials.createInsecure(), {
      'grpc.max_receive_message_length': 16 << 20, 'grpc.max_reconnect_backoff_ms': 1000,
      'grpc.keepalive_time_ms': 20_000,
    })
    Object.assign(this, { milliseconds, attempt })
  }

  close() { this.stub.close() }

  /**
   * Calls once(pending, deadline), which returns a Failure for each failed item. Repeats the call for the items for
   * which a retry may help, until the time is up. Returns a Map with the Failures of the items that failed in the end.
   */
  async #repeat(once, pending) {
    const end = Date.now() + this.milliseconds, failed = new Map(), doubt = new Set()
    for (let pause = 10; ;) {
      const again = []
      let wait = 0
      const deadline = Date.now() + Math.min(this.attempt, Math.max(end - Date.now(), 50))
      for (const [item, failure] of await once(pending, deadline)) {
        if (failure.maybeDone) doubt.add(item)
        // Only the reasons in KNOWN show whether an earlier attempt was applied.
        failure.maybeDone = doubt.has(item) && !KNOWN.has(failure.reason)
        failed.set(item, failure)
        if (failure.again) {
          again.push(item)
          wait = Math.max(wait, failure.wait)
        }
      }
      pause = Math.max(Math.min(2 * pause, 500) * (0.5 + Math.random() / 2), wait)
      if (again.length === 0 || Date.now() + pause > end) return failed
      for (const item of again) failed.delete(item)
      pending = again
      await sleep(pause + 1) // a timer may fire a millisecond too early
    }
  }

  async #one(method, request) {
    let answer
    const failed = await this.#repeat((_, deadline) => new Promise((resolve, reject) => {
      this.stub[method](request, { deadline }, (err, got) => {
        answer = got
        try { resolve(err ? [[0, failureOf(err)]] : []) } catch (e) { reject(e) }
      })
    }), [0])
    for (const failure of failed.values()) throw failure
    return answer
  }

  /** Stores at most 1 MiB of data, and returns the version. fields: attributes, condition, timestamp_unix_ns. */
  async put(key, data, fields = {}) { return (await this.#one('Put', putRequest(key, data, fields))).version }

  async get(key) { return checked((await this.#one('Get', { key })).record).data }

  async delete(key) { return (await this.#one('Delete', { key, request_id: randomBytes(16) })).existed }

  /** Stores a Map of data by id, and returns a Map of the Failures. All attempts of a put have the same request id. */
  async putMany(records) {
    const puts = new Map([...records].map(([id, data]) => [id, putRequest({ id }, data)]))
    return this.#repeat(async (pending, deadline) => {
      const failed = new Map(), left = [...pending]
      const call = this.stub.BatchPut({ deadline })
      try {
        const parts = split(pending.map((id) => puts.get(id)), types['sheaf.record.v1.PutRequest'], 1024, 2 << 20)
        for (const puts of parts) call.write({ puts })
        call.end()
        for await (const { results } of call) {
          for (const { status } of results) { // in the order of the puts
            const id = left.shift()
            if (status?.code) failed.set(id, new Failure(status))
          }
        }
        for (const id of left) failed.set(id, new Failure({ code: UNAVAILABLE, message: 'no answer came' }))
      } catch (err) { // unanswered puts may have been applied
        for (const id of left) {
          const failure = failureOf(err)
          failure.maybeDone ||= failure.again
          failed.set(id, failure)
        }
      }
      return failed
    }, [...puts.keys()])
  }

  /** Reads records, and returns {found, failed}: Maps of data and of Failures by id. */
  async getMany(ids) {
    const found = new Map()
    const failed = await this.#repeat(async (pending, deadline) => {
      const failed = new Map(), left = new Set(pending)
      try {
        const requests = pending.map((id) => ({ key: { id } }))
        for (const gets of split(requests, types['sheaf.record.v1.GetRequest'], 4096, 2 << 20)) {
          for await (const { results } of this.stub.BatchGet({ gets }, { deadline })) {
            for (const { position, status, record } of results) { // in any order
              const { id } = gets[position].key
              left.delete(id)
              if (status?.code) failed.set(id, new Failure(status))
              else found.set(id, checked(record).data)
            }
          }
        }
      } catch (err) {
        for (const id of left) failed.set(id, failureOf(err))
      }
      return failed
    }, [...ids])
    return { found, failed }
  }

  /**
   * Yields the newest version of each record of a group, or of all groups. A record above 1 MiB has no data. Use
   * Download for such records.
   */
  async *scan(group = '') {
    const begin = (at) => this.stub.Scan(at.length > 0 ? { cursor: at } : { group })
    for await (const { records } of this.#follow(begin)) yield* records
  }

  /**
   * Yields messages, each with changed records and the cursor after them. Store the cursor together with the results of
   * processing these records.
   */
  watch(group, cursor = Buffer.alloc(0)) {
    return this.#follow((at) => this.stub.Watch({ group, cursor: at }), cursor)
  }

  /** Yields the messages of a stream. A stream that breaks is started again at the last cursor. */
  async *#follow(begin, cursor = Buffer.alloc(0)) {
    for (let end = 0, pause = 10; ;) { // end is the time to give up, set after a failure until the next message
      const call = begin(cursor)
      try {
        for await (const answer of call) {
          answer.records.forEach(checked)
          cursor = answer.cursor
          end = 0
          pause = 10
          yield answer
        }
        return
      } catch (err) {
        const failure = failureOf(err)
        end ||= Date.now() + this.milliseconds
        pause = Math.max(Math.min(2 * pause, 500) * (0.5 + Math.random() / 2), failure.wait)
        if (!failure.again || Date.now() + pause > end) throw failure
      } finally {
        call.on('error', () => {}) // ignores the error, which only means that the call was cancelled
        call.cancel() // also if the caller stops early, because unread answers occupy memory
      }
      await sleep(pause + 1)
    }
  }
}

function putRequest(key, data, fields = {}) {
  return { key, data, request_id: randomBytes(16), data_crc32c: crc32c(data), ...fields }
}

function checked(record) {
  if (Object.hasOwn(record, '_data_crc32c') && crc32c(record.data) !== record.data_crc32c) {
    throw new RangeError(`record ${record.key.id}: its bytes were changed on the way`)
  }
  return record
}

/** Divides requests into messages of at most these numbers of requests and bytes. A larger one has its own message. */
function split(requests, type, most, mostBytes) {
  const parts = [[]]
  let size = 0
  for (const request of requests) {
    const n = type.serialize(request).length + 16
    if (parts.at(-1).length > 0 && (parts.at(-1).length === most || size + n > mostBytes)) {
      parts.push([])
      size = 0
    }
    parts.at(-1).push(request)
    size += n
  }
  return parts.at(-1).length > 0 ? parts : []
}

module.exports = { Store, Failure }

async function main() {
  const store = new Store('127.0.0.1:7600')
  console.log('version', await store.put({ id: 1 }, Buffer.from('hello')))
  console.log((await store.get({ id: 1 })).toString())
  const many = new Map(Array.from({ length: 4998 }, (_, n) => [n + 2, Buffer.from('many')]))
  console.log('failed', (await store.putMany(many)).size)
  console.log((await store.getMany(many.keys())).found.size, 'read')
  store.close()
}
if (require.main === module) main()
