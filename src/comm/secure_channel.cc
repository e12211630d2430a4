#include "comm/secure_channel.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <bit>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace tutti::comm {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

constexpr char magic[8] = {'t', 'u', 't', 't', 'i', 't', 'c', 'p'};
constexpr std::uint32_t version = 1;
constexpr std::size_t proof_bytes = sizeof(Key);

template <class T, void (*release)(T*)>
struct Release {
  void operator()(T* object) const { release(object); }
};
using PrivateKey = std::unique_ptr<EVP_PKEY, Release<EVP_PKEY, EVP_PKEY_free>>;
using KeyContext = std::unique_ptr<EVP_PKEY_CTX, Release<EVP_PKEY_CTX, EVP_PKEY_CTX_free>>;
using Cipher = std::unique_ptr<EVP_CIPHER_CTX, Release<EVP_CIPHER_CTX, EVP_CIPHER_CTX_free>>;
using Derivation = std::unique_ptr<EVP_KDF, Release<EVP_KDF, EVP_KDF_free>>;
using DerivationContext = std::unique_ptr<EVP_KDF_CTX, Release<EVP_KDF_CTX, EVP_KDF_CTX_free>>;

// Of what cannot fail on a sound machine.
void must(bool done, const char* what) {
  if (!done) throw WorldError(str("OpenSSL: ", what, " failed"));
}

PrivateKey make_key() {
  PrivateKey key(EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519"));
  must(key != nullptr, "making a key");
  return key;
}

Key public_part(const PrivateKey& own) {
  Key key;
  std::size_t bytes = key.size();
  must(EVP_PKEY_get_raw_public_key(own.get(), key.data(), &bytes) == 1 && bytes == key.size(),
       "reading a key");
  return key;
}

// The point that both sides know. A peer's point of small order has none.
Key shared_point(const PrivateKey& own, const Key& theirs) {
  const PrivateKey peer(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, theirs.data(), theirs.size()));
  const KeyContext context(EVP_PKEY_CTX_new(own.get(), nullptr));
  Key point;
  std::size_t bytes = point.size();
  if (!peer || !context || EVP_PKEY_derive_init(context.get()) != 1 ||
      EVP_PKEY_derive_set_peer(context.get(), peer.get()) != 1 ||
      EVP_PKEY_derive(context.get(), point.data(), &bytes) != 1 || bytes != point.size())
    throw Refused("its key is none");
  return point;
}

void hkdf(std::string& secret, std::string& context, std::span<std::uint8_t> out) {
  const Derivation kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  must(kdf != nullptr, "HKDF");
  const DerivationContext derivation(EVP_KDF_CTX_new(kdf.get()));
  char digest[] = "SHA256";
  OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, secret.data(), secret.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, context.data(), context.size()),
      OSSL_PARAM_construct_end()};
  must(derivation && EVP_KDF_derive(derivation.get(), out.data(), out.size(), parameters) == 1,
       "HKDF");
}

std::string mac(const Key& key, std::string_view text) {
  std::string result(proof_bytes, '\0');
  unsigned bytes = 0;
  must(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
            reinterpret_cast<const unsigned char*>(text.data()), text.size(),
            reinterpret_cast<unsigned char*>(result.data()), &bytes) != nullptr,
       "HMAC");
  return result;
}

bool equal(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view bytes_of(const Hello& hello) {
  return {reinterpret_cast<const char*>(&hello), sizeof hello};
}

// Why their hello is not what this side waits for; nullptr when it is.
const char* mismatch(const Hello& mine, const Hello& theirs) {
  if (std::memcmp(theirs.magic, magic, sizeof magic) != 0) return "it speaks another protocol";
  if (theirs.version != version) return "it speaks another version of the protocol";
  if (theirs.group != mine.group) return "it belongs to another group";
  if (theirs.size != mine.size) return "its group has another size";
  if (theirs.from >= mine.size || theirs.from == mine.from || theirs.to != mine.from)
    return "it is or wants another rank";
  if (theirs.encrypt != mine.encrypt) return "only one side encrypts";
  if (theirs.chunk_bytes != mine.chunk_bytes || theirs.eager_bytes != mine.eager_bytes)
    return "it has other chunk_bytes or eager_bytes";
  return nullptr;
}

}  // namespace

Key sha256(std::string_view text) {
  Key key;
  must(EVP_Digest(text.data(), text.size(), key.data(), nullptr, EVP_sha256(), nullptr) == 1,
       "SHA-256");
  return key;
}

struct Handshake::State {
  enum Step { awaits_hello, awaits_proof, awaits_welcome, over };
  // Of the keys that a connection needs, in the order in which they are derived.
  enum Use { connector_seals, listener_seals, connector_proves, listener_proves, welcomes, uses };

  Hello mine;
  std::string secret;
  bool connects;
  PrivateKey own;  // of a listener: once the connector has said what it wants
  Step step = awaits_hello;
  Hello theirs{};
  std::string transcript;
  std::array<Key, uses> keys{};

  State(const Hello& hello, std::string_view text, bool connecting)
      : mine(hello), secret(text), connects(connecting) {
    std::memcpy(mine.magic, magic, sizeof magic);
    mine.version = version;
    if (connects) draw_key();
  }
  ~State() {
    OPENSSL_cleanse(secret.data(), secret.size());
    OPENSSL_cleanse(keys.data(), sizeof keys);
  }

  void draw_key() {
    own = make_key();
    mine.key = public_part(own);
  }

  std::string proof_of(Use use) const { return mac(keys[use], transcript); }

  void expect(std::string_view got, Use use) const {
    if (!equal(got, proof_of(use))) throw Refused("it does not prove that it knows the secret");
  }

  void meet(std::string_view message) {
    std::memcpy(&theirs, message.data(), sizeof theirs);
    if (const char* why = mismatch(mine, theirs)) throw Refused(why);
    if (connects ? theirs.lane != mine.lane || theirs.from != mine.to : false)
      throw Refused("it is another rank");
    if (!connects) {
      mine.lane = theirs.lane;
      mine.to = theirs.from;
      draw_key();
    }
    derive();
  }

  // Both hellos are bound into keys and proofs, which so hold for this connection alone.
  void derive() {
    Key point = shared_point(own, theirs.key);
    std::string input(reinterpret_cast<const char*>(point.data()), point.size());
    input += secret;
    transcript = "tutti wire 1";
    transcript += bytes_of(connects ? mine : theirs);
    transcript += bytes_of(connects ? theirs : mine);
    hkdf(input, transcript, {keys[0].data(), sizeof keys});
    OPENSSL_cleanse(input.data(), input.size());
    OPENSSL_cleanse(point.data(), point.size());
  }

  std::string take_as_connector(std::string_view message) {
    if (step == awaits_hello) {
      meet(message.substr(0, sizeof(Hello)));
      expect(message.substr(sizeof(Hello)), listener_proves);
      step = awaits_welcome;
      return proof_of(connector_proves);
    }
    expect(message, welcomes);
    step = over;
    return "";
  }

  std::string take_as_listener(std::string_view message) {
    if (step == awaits_hello) {
      meet(message);
      step = awaits_proof;
      return std::string(bytes_of(mine)) + proof_of(listener_proves);
    }
    expect(message, connector_proves);
    step = over;
    return proof_of(welcomes);
  }
};

Handshake::Handshake(const Hello& mine, std::string_view secret, bool connects)
    : state_(std::make_unique<State>(mine, secret, connects)) {}
Handshake::~Handshake() = default;
Handshake::Handshake(Handshake&&) noexcept = default;
Handshake& Handshake::operator=(Handshake&&) noexcept = default;

std::string Handshake::opening() const { return std::string(bytes_of(state_->mine)); }

std::size_t Handshake::wants() const {
  if (state_->step == State::over) return 0;
  if (state_->step != State::awaits_hello) return proof_bytes;
  return sizeof(Hello) + (state_->connects ? proof_bytes : 0);
}

std::string Handshake::answer(std::string_view message) {
  TUTTI_ASSERT(message.size() == wants() && wants() > 0, message.size(), " bytes");
  return state_->connects ? state_->take_as_connector(message) : state_->take_as_listener(message);
}

const Hello& Handshake::peer() const { return state_->theirs; }

Keys Handshake::keys() const {
  const auto& keys = state_->keys;
  Keys result{keys[State::connector_seals], keys[State::listener_seals]};
  if (!state_->connects) std::swap(result.send, result.receive);
  return result;
}

namespace {

// A direction of a connection: its cipher and the number of the next record.
struct Direction {
  Cipher cipher{EVP_CIPHER_CTX_new()};
  std::uint64_t number = 0;

  Direction(const Key& key, bool seals) {
    must(cipher && EVP_CipherInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, key.data(), nullptr,
                                     seals) == 1,
         "AES-256-GCM");
  }

  // The record's number is the nonce, its length is authenticated with it.
  void begin(const std::byte* head) {
    unsigned char nonce[12] = {};
    std::memcpy(nonce, &number, sizeof number);
    ++number;
    int bytes = 0;
    must(EVP_CipherInit_ex(cipher.get(), nullptr, nullptr, nullptr, nonce, -1) == 1 &&
             EVP_CipherUpdate(cipher.get(), nullptr, &bytes,
                              reinterpret_cast<const unsigned char*>(head), Record::head) == 1,
         "AES-256-GCM");
  }

  void add(const std::byte* from, std::size_t size, std::byte* to) {
    int bytes = 0;
    must(
        EVP_CipherUpdate(cipher.get(), reinterpret_cast<unsigned char*>(to), &bytes,
                         reinterpret_cast<const unsigned char*>(from), static_cast<int>(size)) == 1,
        "AES-256-GCM");
  }

  bool finish() {
    unsigned char none[16];
    int bytes = 0;
    return EVP_CipherFinal_ex(cipher.get(), none, &bytes) == 1;
  }

  void tag(int what, std::byte* place) {
    must(EVP_CIPHER_CTX_ctrl(cipher.get(), what, Record::tag, place) == 1, "AES-256-GCM");
  }
};

}  // namespace

struct Sealer::State : Direction {
  using Direction::Direction;
};
struct Opener::State : Direction {
  using Direction::Direction;
};

Sealer::Sealer(const Key& key) : state_(std::make_unique<State>(key, true)) {}
Sealer::~Sealer() = default;
Opener::Opener(const Key& key) : state_(std::make_unique<State>(key, false)) {}
Opener::~Opener() = default;

std::size_t Sealer::seal(std::span<const ByteView> pieces, std::byte* to) {
  std::uint32_t bytes = 0;
  for (const ByteView piece : pieces) bytes += static_cast<std::uint32_t>(piece.size());
  TUTTI_ASSERT(bytes <= Record::most, bytes, " bytes");
  std::memcpy(to, &bytes, sizeof bytes);
  state_->begin(to);
  std::byte* text = to + Record::head;
  for (const ByteView piece : pieces) {
    state_->add(piece.data(), piece.size(), text);
    text += piece.size();
  }
  must(state_->finish(), "sealing");
  state_->tag(EVP_CTRL_AEAD_GET_TAG, text);
  return Record::head + bytes + Record::tag;
}

std::size_t Opener::length(const std::byte* record) {
  std::uint32_t bytes = 0;
  std::memcpy(&bytes, record, sizeof bytes);
  if (bytes > Record::most) throw Refused("a record is damaged");
  return Record::head + bytes + Record::tag;
}

std::span<std::byte> Opener::open(std::span<std::byte> record) {
  const std::span<std::byte> text =
      record.subspan(Record::head, record.size() - Record::head - Record::tag);
  state_->begin(record.data());
  state_->add(text.data(), text.size(), text.data());
  state_->tag(EVP_CTRL_AEAD_SET_TAG, text.data() + text.size());
  if (!state_->finish()) throw Refused("a record is damaged");
  return text;
}

}  // namespace tutti::comm
