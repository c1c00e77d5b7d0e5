"""Every command of mqadmin 4.9.7 is known by its name, with all of its options in both of their forms."""

from __future__ import annotations

from unittest import TestCase

from rmq.admin.command import COMMANDS
from rmq.admin.main import parse, whole_parser
from rmq.admin.names import ALIASES, INSTEAD

#: the options of each command as its source has them: letter:name, with = where a value follows
OPTIONS = """
addWritePerm b:brokerName=
allocateMQ t:topic= i:ipList=
brokerConsumeStats b:brokerAddr= t:timeoutMillis= l:level= o:order=
brokerStatus b:brokerAddr= c:clusterName=
checkMsgSendRT t:topic= a:amount= s:size=
cleanExpiredCQ b:brokerAddr= c:cluster=
cleanUnusedTopic b:brokerAddr= c:cluster=
cloneGroupOffset s:srcGroup= d:destGroup= t:topic= o:offline=
clusterAclConfigVersion b:brokerAddr= c:clusterName=
clusterList m:moreStats i:interval=
clusterRT a:amount= s:size= c:cluster= p= m= i:interval=
consumerConnection g:consumerGroup= b:brokerAddr=
consumerProgress g:groupName= s:showClientIP=
consumerStatus g:consumerGroup= i:clientId= b:brokerAddr= s:jstack
deleteAclConfig b:brokerAddr= c:clusterName= a:accessKey=
deleteExpiredCommitLog n:namesrvAddr= b:brokerAddr= c:cluster=
deleteKvConfig s:namespace= k:key=
deleteSubGroup b:brokerAddr= c:clusterName= g:groupName= r:removeOffset=
deleteTopic t:topic= c:clusterName=
exportConfigs c:clusterName= f:filePath=
exportMetadata c:clusterName= b:brokerAddr= f:filePath= t:topic g:subscriptionGroup s:specialTopic
exportMetrics c:clusterName= f:filePath=
getAclConfig b:brokerAddr= c:clusterName=
getBrokerConfig b:brokerAddr= c:clusterName=
getConsumerConfig g:groupName=
getNamesrvConfig
producer b:broker=
producerConnection g:producerGroup= t:topic=
queryCq t:topic= q:queue= i:index= c:count= b:broker= g:consumer=
queryMsgById i:msgId= g:consumerGroup= d:clientId= s:sendMessage= u:unitName=
queryMsgByKey t:topic= k:msgKey=
queryMsgByOffset t:topic= b:brokerName= i:queueId= o:offset=
queryMsgByUniqueKey i:msgId= g:consumerGroup= d:clientId= t:topic= a:showAll
queryMsgTraceById i:msgId= t:traceTopic=
resetOffsetByTime g:group= t:topic= s:timestamp= f:force= c:cplus
sendMessage t:topic= p:body= k:key= c:tags= b:broker= i:qid= m:msgTraceEnable=
sendMsgStatus b:brokerName= s:messageSize= c:count=
skipAccumulatedMessage g:group= t:topic= f:force=
startMonitoring
statsAll a:activeTopic t:topic=
topicClusterList t:topic=
topicList c:clusterModel
topicRoute t:topic= l:list
topicStatus t:topic=
updateAclConfig b:brokerAddr= c:clusterName= a:accessKey= s:secretKey= w:whiteRemoteAddress= i:defaultTopicPerm= \
u:defaultGroupPerm= t:topicPerms= g:groupPerms= m:admin=
updateBrokerConfig b:brokerAddr= c:clusterName= k:key= v:value=
updateGlobalWhiteAddr b:brokerAddr= c:clusterName= g:globalWhiteRemoteAddresses= p:aclFileFullPath=
updateKvConfig s:namespace= k:key= v:value=
updateNamesrvConfig k:key= v:value=
updateOrderConf t:topic= v:orderConf= m:method=
updateSubGroup b:brokerAddr= c:clusterName= g:groupName= s:consumeEnable= m:consumeFromMinEnable= \
d:consumeBroadcastEnable= q:retryQueueNums= r:retryMaxTimes= i:brokerId= w:whichBrokerWhenConsumeSlowly= \
a:notifyConsumerIdsChanged=
updateTopic b:brokerAddr= c:clusterName= t:topic= r:readQueueNums= w:writeQueueNums= p:perm= o:order= u:unit= \
s:hasUnitSub=
updateTopicPerm b:brokerAddr= c:clusterName= t:topic= p:perm=
wipeWritePerm b:brokerName=
""".replace("\\\n", "")

#: what 5.3.3 has besides, of the commands that are here
OPTIONS_OF_5 = """
clusterList c:clusterName=
consumerProgress t:topicName= c:cluster=
haStatus c:clusterName= b:brokerAddr= i:interval=
queryMsgById t:topic= f:bodyFormat= c:cluster= i:msgId=
queryMsgByKey b:beginTimestamp= e:endTimestamp= m:maxNum= c:cluster= t:topic= k:msgKey=
queryMsgByOffset f:bodyFormat= t:topic= b:brokerName= i:queueId= o:offset=
queryMsgByUniqueKey c:cluster= i:msgId= t:topic=
queryMsgTraceById b:beginTimestamp= e:endTimestamp= c:maxNum= i:msgId=
resetOffsetByTime g:group= t:topic= s:timestamp= c:cluster= b:broker= q:queue= o:offset=
skipAccumulatedMessage c:cluster= g:group= t:topic=
topicStatus c:cluster= t:topic=
updateBrokerConfig a:updateAllBroker= k:key= v:value=
updateSubGroup o:consumeMessageOrderly= p:groupRetryPolicy= g:groupName=
updateTopic a:attributes= t:topic=
"""

#: what stands for a value, by the long name of an option; others are numbers
VALUES = {
    **dict.fromkeys(("brokerAddr", "namesrvAddr", "broker"), "127.0.0.1:1"),
    **dict.fromkeys(("showClientIP", "sendMessage", "force", "order", "unit", "hasUnitSub", "removeOffset"), "true"),
    **dict.fromkeys(("consumeEnable", "consumeFromMinEnable", "consumeBroadcastEnable", "admin"), "false"),
    **dict.fromkeys(("defaultTopicPerm", "defaultGroupPerm"), "DENY"),
    "notifyConsumerIdsChanged": "false",
    "perm": "6",
    "groupRetryPolicy": "{}",
    "method": "put",
    "timestamp": "now",
}


class OptionTests(TestCase):
    def test_all_options(self) -> None:
        """Each command line parses with all options at once, in short and in long form."""
        for line in (OPTIONS + OPTIONS_OF_5).split("\n"):
            name, *options = line.split() or [""]
            short, long = [name], [name]
            for option in options:
                letter, _, full = option.rstrip("=").partition(":")
                value = [VALUES.get(full, "1")] if option.endswith("=") else []
                short += [f"-{letter}", *value]
                long += [f"--{full}" if full else f"-{letter}", *value]
            for arguments in filter(None, (short, long)) if name else ():
                with self.subTest(" ".join(arguments)):
                    parsed = parse(arguments)
                    self.assertEqual((parsed.command, parsed.as_mqadmin), (ALIASES[name], True))

    def test_none_is_missing(self) -> None:
        """The table has every name of mqadmin that is an alias; the others lead to `tail`."""
        named = {line.split()[0] for line in OPTIONS.splitlines() if line}
        ours = {"explain", "haStatus", "routeDiff", "routeDump"}
        self.assertEqual(named, set(ALIASES) - ours)
        self.assertEqual(len(named | set(INSTEAD)), 57)
        whole_parser()  # imports all commands
        self.assertLessEqual(set(ALIASES.values()), set(COMMANDS))
