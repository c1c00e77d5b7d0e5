# A template: at a release, put the address and the checksum of the sdist in, then let
# `brew update-python-resources txrocketmq` write a resource for each dependency.
class Txrocketmq < Formula
  include Language::Python::Virtualenv

  desc "For Apache RocketMQ: client, NameServer and broker on Twisted"
  homepage "@HOMEPAGE@"
  url "@SDIST@"
  sha256 "@SHA256@"
  license "Apache-2.0"

  depends_on "python@3.13"

  def install
    virtualenv_install_with_resources
  end

  test do
    assert_match "txrocketmq #{version}", shell_output("#{libexec}/bin/python -m rmq")
    assert_match "listenPort=9876", shell_output("#{bin}/rmq-namesrv --nodaemon --pidfile= -p")
  end
end
